"""A condition says of a message whether it holds, and can do no harm; what could not be meant is refused."""

import dataclasses

import pytest

from redis_message_queue.condition import RECORD, WAITING, condition
from redis_message_queue.errors import ConfigurationError
from redis_message_queue.messages import MessageRecord, moment

LETTER = MessageRecord(
    payload='{"customer": {"country": "AT"}, "lines": [1, 2], "paid": false}',
    id="0" * 32,
    tenant="acme",
    delivery_count=3,
    published_at=moment(1_800_000_000),
    error_type="TimeoutError",
    error="a Timeout of the bank",
    headers={"trace": "x"},
)
OF_A_LETTER = [
    ("tenant == 'acme'", True),
    ("tenant == 'acme' and 'timeout' in error", False),
    ("tenant == 'acme' and 'timeout' in error.lower()", True),
    ("error_type.endswith('Error')", True),
    ("error_type.startswith('Lookup')", False),
    ("tenant in ['acme', 'bolt']", True),
    ("tenant not in ('acme', 'bolt')", False),
    ("1 < delivery_count <= 3", True),
    ("delivery_count > -1", True),
    ("not (delivery_count >= 3)", False),
    ("published_at >= '2027-01-01'", True),
    ("published_at < '2027-01-15T08:00:00+00:00'", False),
    ("'2027-01-15T08:00:01' > published_at", True),
    ("published_at == '2027-01-15T08:00:00Z'", True),
    ("json['customer']['country'] == 'AT'", True),
    ("json['lines'][1] == 2", True),
    ("2 in json['lines']", True),
    ("'customer' in json", True),
    ("json['paid'] == False", True),
    ("json['nowhere']['at'][7] is None", True),
    ("json['lines'] > 1", False),
    ("json['customer']['country'].lower() == 'at'", True),
    ("json['lines'].lower() == 'x'", False),
    ("'country' in payload", True),
    ("headers['trace'] == 'x'", True),
    ("headers['nothing'] is None", True),
    ("published_at in ['2027-01-15T08:00', '2030-01-01']", True),
    ("published_at in ['2030-01-01', None]", False),
    ("delivery_count in [1, 'a', 3.0, None]", True),
    ("delivery_count in ['3', None]", False),
    ("delivery_count < 99999999999999999999", True),
    ("delivery_count == 99999999999999999999", False),
    ("None == None and 'x' in 'xyz' and 'A'.lower() == 'a'", True),
    ("json['lines'] == [1, 2] == (1, 2)", True),
    ("[1] == [1]", True),
    ("tenant.lower().startswith(tenant)", True),
    ("tenant == 'acme'\n  and delivery_count\n > 1\n", True),
    ("not not (tenant == 'acme' or error == 'x') and not error != error", True),
]
OF_NOTHING = [
    ("error is None", True),
    ("error == None", True),
    ("error != 'x'", True),
    ("error is not None", False),
    ("'x' in error", False),
    ("'x' not in error", True),
    ("delivery_count > 0", False),
    ("not delivery_count > 0", True),
    ("finished_at < '2030-01-01'", False),
    ("error.lower() == 'x'", False),
    ("error.startswith('x')", False),
    ("json['a'] is None", True),
    ("payload is None", True),
]
REFUSED = [
    ("", "1 to 10,000 characters"),
    ("   ", "1 to 10,000 characters"),
    ("tenant", "compare it with something"),
    ("'acme'", "compare it with something"),
    ("tenant == 'acme' and error", "error is no condition"),
    ("not tenant", "tenant is no condition"),
    ("custmer == 'x'", "a record has no 'custmer'; it has claimed_at, "),
    ("due_at is None", "a record has no 'due_at'"),
    ("tenant = 'acme'", "cannot be read"),
    ("tenant == 'acme", "cannot be read"),
    ("tenant == 'acme') or\n(tenant == 'bolt'", "cannot be read"),
    ("tenant == 'acme'; 1", "cannot be read"),
    ("delivery_count == '3'", "delivery_count is a number and '3' a text"),
    ("delivery_count > None", "cannot be compared"),
    ("published_at > 'yesterday'", "'yesterday' is no time"),
    ("published_at > error", "error is no time"),
    ("published_at > 5", "cannot be compared"),
    ("3 in error", "3 cannot be in error"),
    ("error in delivery_count", "error cannot be in delivery_count"),
    ("tenant is 'acme'", "`is` goes with None"),
    ("delivery_count.lower() == 'x'", "is for texts"),
    ("error.lower('x') == 'x'", "takes 0 texts"),
    ("error.startswith()", "takes 1 texts"),
    ("tenant['x'] == 1", "only json has parts"),
    ("b'x' == payload", "is no text, number"),
    ("tenant in [error]", "is no text, number"),
    ("True['x'] == 1", "only json has parts"),
    ("published_at in ['yesterday']", "'yesterday' is no time"),
    ("published_at in error", "error is no time"),
    ("published_at > '9999-12-31T23:59:59-01:00'", "is no time"),
    (r"tenant == '\ud800'", "half of a character"),
    ("tenant in [['a']]", "is no text, number"),
    ("error == 1j", "is no text, number"),
    # What SQL could do, and a condition cannot:
    ("reflect('java.lang.System', 'exit', 7) is None", "is not among what a condition can have"),
    ("java_method('java.lang.System', 'exit', 7)", "is not among what a condition can have"),
    ("id in (select value from text.`/etc/passwd`)", "cannot be read"),
    ("exists (select 1)", "cannot be read"),
    ("tenant = 'acme'", "write it like tenant == 'acme'"),
    ("tenant == 'acme' -- and", "cannot be read"),
    # What Python could do, and a condition cannot:
    ("__import__('os').system('true') == 0", "is not among what a condition can have"),
    ("error.__class__ == 'x'", "is not among what a condition can have"),
    ("error.format(tenant) == 'x'", "is not among what a condition can have"),
    ("error.lower.__globals__ == 'x'", "is not among what a condition can have"),
    ("json[error] == 'x'", "is not among what a condition can have"),
    ("json['a':'b'] == 'x'", "is not among what a condition can have"),
    ("9 ** 9 ** 9 == delivery_count", "is not among what a condition can have"),
    ("error * 1000000000 == 'x'", "is not among what a condition can have"),
    ("(lambda: 1)() == 1", "is not among what a condition can have"),
    ("[one for one in error] == 'x'", "is not among what a condition can have"),
    ("(tenant := 'x') == 'x'", "is not among what a condition can have"),
    ("f'{error}' == 'x'", "is not among what a condition can have"),
    ("tenant if error else id", "is not among what a condition can have"),
    ("error.startswith(*['x'])", "is not among what a condition can have"),
    ("error.startswith(prefix='x')", "is not among what a condition can have"),
    ("error == 'x' and " * 100 + "error == 'x'", "more than 200 parts"),
    ("not " * 5_000 + "error", ""),
    ("(" * 3_000 + "error" + ")" * 3_000, "cannot be read"),
    ("error == '" + "x" * 10_000 + "'", "1 to 10,000 characters"),
    ("error == 'x\0'", "cannot be read"),
]


@pytest.mark.parametrize(("text", "holds"), OF_A_LETTER)
@pytest.mark.parametrize("payload", [LETTER.payload, LETTER.payload.encode()])
def test_a_condition_says_of_a_letter_whether_it_holds(payload, text, holds):
    assert condition(text)(dataclasses.replace(LETTER, payload=payload)) is holds


@pytest.mark.parametrize(("text", "holds"), OF_NOTHING)
@pytest.mark.parametrize("payload", [None, b"\xff"])
def test_what_is_not_known_is_equal_to_none_alone(payload, text, holds):
    assert condition(text)(MessageRecord(payload=payload)) is holds


@pytest.mark.parametrize(("text", "told"), REFUSED)
def test_a_condition_that_could_not_be_meant_is_refused(text, told):
    with pytest.raises(ConfigurationError) as refused:
        condition(text)
    assert str(refused.value).startswith("--where: ")
    assert told in str(refused.value)


def test_it_can_ask_for_all_that_a_record_has():
    has = {field.name for field in dataclasses.fields(MessageRecord)}
    assert set(WAITING) == has | {"json"}
    assert set(RECORD) == has - {"due_at"} | {"json"}


def test_two_conditions_that_differ_in_spaces_and_brackets_alone_have_one_text():
    texts = {condition(text).text for text in ("tenant == 'acme'", "( tenant\n==  'acme' )", 'tenant == "acme"')}
    assert texts == {"tenant == 'acme'"}
