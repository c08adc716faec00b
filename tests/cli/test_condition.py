"""A condition selects messages and can do nothing else; a condition that makes no sense is refused."""

import dataclasses

import pytest

from redis_message_queue.protocol.operate.condition import RECORD, WAITING, condition
from redis_message_queue.values.errors import ConfigurationError
from redis_message_queue.values.messages import MessageRecord, moment

pytestmark = pytest.mark.topic("Command line")

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
    ("tenant", "compare it with a value"),
    ("'acme'", "compare it with a value"),
    ("tenant == 'acme' and error", "error is not a condition"),
    ("not tenant", "tenant is not a condition"),
    ("custmer == 'x'", "a record has no field 'custmer'; its fields are claimed_at, "),
    ("due_at is None", "a record has no field 'due_at'"),
    ("tenant = 'acme'", "cannot be parsed"),
    ("tenant == 'acme", "cannot be parsed"),
    ("tenant == 'acme') or\n(tenant == 'bolt'", "cannot be parsed"),
    ("tenant == 'acme'; 1", "cannot be parsed"),
    ("delivery_count == '3'", "delivery_count is a number and '3' a text"),
    ("delivery_count > None", "cannot be compared"),
    ("published_at > 'yesterday'", "'yesterday' is not a time"),
    ("published_at > error", "error is not a time"),
    ("published_at > 5", "cannot be compared"),
    ("3 in error", "3 cannot be in error"),
    ("error in delivery_count", "error cannot be in delivery_count"),
    ("tenant is 'acme'", "`is` works only with None"),
    ("delivery_count.lower() == 'x'", "works only on texts"),
    ("error.lower('x') == 'x'", "takes 0 arguments"),
    ("error.startswith()", "takes 1 arguments"),
    ("tenant['x'] == 1", "only json and headers have items"),
    ("b'x' == payload", "is not a text, number"),
    ("tenant in [error]", "is not a text, number"),
    ("True['x'] == 1", "only json and headers have items"),
    ("published_at in ['yesterday']", "'yesterday' is not a time"),
    ("published_at in error", "error is not a time"),
    ("published_at > '9999-12-31T23:59:59-01:00'", "is not a time"),
    (r"tenant == '\ud800'", "lone surrogate"),
    ("tenant in [['a']]", "is not a text, number"),
    ("error == 1j", "is not a text, number"),
    # What SQL could do, and a condition cannot:
    ("reflect('java.lang.System', 'exit', 7) is None", "is not allowed in a condition"),
    ("java_method('java.lang.System', 'exit', 7)", "is not allowed in a condition"),
    ("id in (select value from text.`/etc/passwd`)", "cannot be parsed"),
    ("exists (select 1)", "cannot be parsed"),
    ("tenant = 'acme'", "write it like tenant == 'acme'"),
    ("tenant == 'acme' -- and", "cannot be parsed"),
    # What Python could do, and a condition cannot:
    ("__import__('os').system('true') == 0", "is not allowed in a condition"),
    ("error.__class__ == 'x'", "is not allowed in a condition"),
    ("error.format(tenant) == 'x'", "is not allowed in a condition"),
    ("error.lower.__globals__ == 'x'", "is not allowed in a condition"),
    ("json[error] == 'x'", "is not allowed in a condition"),
    ("json['a':'b'] == 'x'", "is not allowed in a condition"),
    ("9 ** 9 ** 9 == delivery_count", "is not allowed in a condition"),
    ("error * 1000000000 == 'x'", "is not allowed in a condition"),
    ("(lambda: 1)() == 1", "is not allowed in a condition"),
    ("[one for one in error] == 'x'", "is not allowed in a condition"),
    ("(tenant := 'x') == 'x'", "is not allowed in a condition"),
    ("f'{error}' == 'x'", "is not allowed in a condition"),
    ("tenant if error else id", "is not allowed in a condition"),
    ("error.startswith(*['x'])", "is not allowed in a condition"),
    ("error.startswith(prefix='x')", "is not allowed in a condition"),
    ("error == 'x' and " * 100 + "error == 'x'", "more than 200 parts"),
    ("not " * 5_000 + "error", ""),
    ("(" * 3_000 + "error" + ")" * 3_000, "cannot be parsed"),
    ("error == '" + "x" * 10_000 + "'", "1 to 10,000 characters"),
    ("error == 'x\0'", "cannot be parsed"),
]


@pytest.mark.parametrize("payload", [LETTER.payload, LETTER.payload.encode()])
def test_a_condition_says_of_a_letter_whether_it_holds(payload, subtests):
    for text, holds in OF_A_LETTER:
        with subtests.test(text):
            assert condition(text)(dataclasses.replace(LETTER, payload=payload)) is holds


@pytest.mark.promise("In a condition, an unknown field of a dead letter equals only None.")
@pytest.mark.parametrize("payload", [None, b"\xff"])
def test_what_is_not_known_is_equal_to_none_alone(payload, subtests):
    for text, holds in OF_NOTHING:
        with subtests.test(text):
            assert condition(text)(MessageRecord(payload=payload)) is holds


@pytest.mark.promise(
    "A condition of `rmq redrive` is never run as Python, and an invalid one is refused before any change."
)
def test_a_condition_that_could_not_be_meant_is_refused(subtests):
    for text, told in REFUSED:
        with subtests.test(text):
            with pytest.raises(ConfigurationError) as refused:
                condition(text)
            assert str(refused.value).startswith("--where: ")
            assert told in str(refused.value)


def test_it_can_ask_for_all_that_a_record_has():
    # Only `get()` tells the state, and a mark is looked up after the condition.
    has = {field.name for field in dataclasses.fields(MessageRecord)} - {"state", "cancelled"}
    assert set(WAITING) == has | {"json"}
    assert set(RECORD) == has - {"due_at", "consumer"} | {"json"}


def test_two_conditions_that_differ_in_spaces_and_brackets_alone_have_one_text():
    texts = {condition(text).text for text in ("tenant == 'acme'", "( tenant\n==  'acme' )", 'tenant == "acme"')}
    assert texts == {"tenant == 'acme'"}
