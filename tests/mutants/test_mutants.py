"""The mutants: each still changes one place of the library, and names test files that exist."""

from collections import Counter
from pathlib import Path

from tests.mutants.mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[2]


def test_every_mutant_changes_one_place(subtests):
    """Its old text is in its file once, and the new text is another one."""
    for mutant in MUTANTS:
        with subtests.test(mutant.name):
            text = (ROOT / mutant.file).read_text()
            assert text.count(mutant.old) == 1, f"{mutant.file} has this text {text.count(mutant.old)} times"
            assert mutant.applied_to(text) != text
            if mutant.file.endswith(".py"):
                compile(mutant.applied_to(text), mutant.file, "exec")


def test_the_likely_test_files_exist(subtests):
    """Whoever moves a test file names its new place here."""
    for mutant in MUTANTS:
        with subtests.test(mutant.name):
            assert mutant.likely
            assert [path for path in mutant.likely if not (ROOT / path).is_file()] == []


def test_mutants_have_names_of_their_own():
    assert [name for name, count in Counter(one.name for one in MUTANTS).items() if count > 1] == []
