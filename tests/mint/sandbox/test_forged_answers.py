"""Programs that answer with lies, each in its own way: none passes, none harms the process of the tests.

Each is asked for `f(1)`, whose right answer is `[1, 2, 3]`, by tests that try many operations on the answer.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from histobench.mint.sandbox import SandboxPool, backend_works, open_sandbox, run_unit_tests

pytestmark = pytest.mark.slow

TESTS = """
import collections, copy, datetime, decimal, fractions, json, math, numpy, operator, statistics
want = [1, 2, 3]
attempts = [
    lambda: f(1) == want,
    lambda: want == f(1),
    lambda: not (f(1) != want),
    lambda: f(1) in [want],
    lambda: list(f(1)) == want,
    lambda: sorted(f(1)) == want,
    lambda: {"a": f(1)} == {"a": want},
    lambda: all(value == want for value in map(f, [1, 2])),
    lambda: json.dumps(f(1)) == "[1, 2, 3]",
    lambda: copy.deepcopy(f(1)) == want,
    lambda: numpy.array_equal(f(1), want),
    lambda: numpy.array([f(1)]).tolist() == [want],
    lambda: numpy.array([f(1)], dtype=object)[0] == want,
    lambda: numpy.asarray(f(1), dtype=float).sum() == 6,
    lambda: bool(numpy.all(numpy.equal(f(1), want))),
    lambda: numpy.allclose(f(1), want),
    lambda: numpy.sum(f(1)) == 6 and numpy.ndim(f(1)) == 1,
    lambda: math.isclose(math.fsum(f(1)), 6.0),
    lambda: abs(f(1) - 6.0) < 1e-6,
    lambda: round(f(1), 2) == 6,
    lambda: float(f(1)) == 6.0 or operator.index(f(1)) == 6,
    lambda: memoryview(f(1)) == bytes(want),
    lambda: isinstance(f(1), list) and len(f(1)) == 3 and f(1)[0] == 1,
    lambda: statistics.mean(f(1)) == 2,
    lambda: fractions.Fraction(f(1)) == 6 or decimal.Decimal(f(1)) == 6,
    lambda: len({1, 2, 3} ^ set(f(1))) == 0,
    lambda: f(1) == datetime.date(2001, 2, 3) or datetime.date(2001, 2, 3) == f(1),
    lambda: f(1) == collections.deque(want) or f(1) == fractions.Fraction(2, 7),
    lambda: f(1) == decimal.Decimal("1.23") or f(1) == range(1, 4),
    lambda: bool((f(1) == numpy.array(want)).all()),
]
won = []
for number, attempt in enumerate(attempts):
    try:
        if attempt():
            won.append(number)
    except Exception:
        pass
assert won, won
"""
# What `forged()` gives is sent as it is, in the place of the answer.
FORGE = """
import sys
channel = sys.modules["guest.tested_program"]
honest = channel.written
class Forged: pass
class Pretender:
    __index__ = __int__ = lambda self: 6
    __float__ = lambda self: 6.0
def written(value, sent):
    pretender = sent(Pretender())
    return forged(pretender) if type(value) is Forged else honest(value, sent)
channel.written = written
def f(x): return Forged()
"""
#: Data that describes no value.
RAW = {
    "a tag of its own": '{"t": "eval", "v": "[1, 2, 3]"}',
    "a tag that is a list": '{"t": ["list"], "v": [1, 2, 3]}',
    "no tag": '{"v": [1, 2, 3]}',
    "more than a tag and a value": '{"t": "tuple", "v": [1, 2, 3], "x": 1}',
    "a dictionary without tags": '{"a": 1}',
    "pickled data": '{"t": "pickle", "v": "gASVCQAAAAAAAABdlChLAUsCSwNlLg=="}',
    "a class by its name": '{"t": "list", "v": [1, 2, 3]}',
    "an integer with underscores": '{"t": "int", "v": "0x1_0"}',
    "an integer that is no text": '{"t": "int", "v": 6}',
    "an endless integer": '{"t": "int", "v": "0x" + "f" * 3_000_000}',
    "bytes that are none": '{"t": "bytes", "v": "zz"}',
    "a tuple of text": '{"t": "tuple", "v": "123"}',
    "a set of lists": '{"t": "set", "v": [[1]]}',
    "a dictionary with a list for a key": '{"t": "dict", "v": [[[1], 2]]}',
    "a dictionary of triples": '{"t": "dict", "v": [[1, 2, 3]]}',
    "a dictionary of text": '{"t": "dict", "v": ["ab"]}',
    "a complex number of text": '{"t": "complex", "v": ["6"]}',
    "a complex number of a remote object": '{"t": "complex", "v": [pretender, 0.0]}',
    "a list nested a thousand times": "__import__('functools').reduce(lambda a, _: [a], range(900), 1)",
    "a number too large for JSON": "1 << 70",
}
#: Bytes that are written to the channel beside the answer, each as one message unless it says its length.
WIRE = {
    "a list nested nine hundred times": "b'{\"value\":' + b'[' * 900 + b']' * 900 + b'}'",
    "a list nested without end": "b'{\"value\":' + b'[' * 100_000",
    "a reason nested nine hundred times": "b'{\"op\":\"loaded\",\"why\":' + b'[' * 900 + b']' * 900 + b'}'",
    "a number of 5,000 digits": "b'{\"value\":' + b'9' * 5000 + b'}'",
    "the same key twice": 'b\'{"value":[9],"value":[1,2,4]}\'',
    "another encoding": "'{\"value\":[9]}'.encode('utf-16')",
    "bytes of no encoding": 'b\'{"value":"\\xff"}\'',
    "no object": "b'[1,2,3]'",
    "nothing at all": "b''",
    "ten thousand answers": '*[b\'{"op":"answer","value":[9]}\'] * 10_000',
    "sets in sets of four megabytes": (
        "b'{\"value\":' + b'{\"t\":\"frozenset\",\"v\":[' * 190 + b'\"' + b'a' * 4_000_000 + b'\"' "
        "+ b']}' * 190 + b'}'"
    ),
}
#: Objects with whatever a library might look for.
SPECIAL = {
    "__array_interface__": '{"shape": (3,), "typestr": "|O8", "data": (id(f), False), "version": 3}',
    "__array__": "lambda self, *a, **k: __import__('numpy').array([1, 2, 3])",
    "__array_ufunc__": "lambda self, *a, **k: True",
    "__buffer__": "lambda self, flags: memoryview(bytes([1, 2, 3]))",
    "__index__": "lambda self: 6",
    "__float__": "lambda self: 6.0",
    "__sub__": "lambda self, other: 0",
    "__eq__": "lambda self, other: True",
    "__ne__": "lambda self, other: False",
    "__contains__": "lambda self, other: True",
    "__class__": "property(lambda self: list)",
    "__reduce_ex__": "lambda self, protocol: (list, ([1, 2, 3],))",
    "__deepcopy__": "lambda self, memo: [1, 2, 3]",
    "__repr__": "lambda self: '[1, 2, 3]'",
    "__len__": "lambda self: (1 << 53) - 1",
    "__bool__": "lambda self: self",
    "__hash__": "lambda self: 1",
    "__getattr__": "lambda self, name: self",
    "__getitem__": "lambda self, index: self",
    "__iter__": "lambda self: self",
    "tolist": "lambda self: [1, 2, 3]",
}
#: Whole answers; the second half of a line is what `_attempt`, which makes them, gives instead.
ANSWERS = {
    "a verdict": '{"op": "verdict", "passed": True}',
    "a verdict beside a value": '{"value": 1, "op": "verdict", "passed": True, "number": 1}',
    "an order": '{"op": "tests", "tests": "pass", "value": 1}',
    "an end of all iterations": '{"error": "StopIteration", "message": ""}',
    "an exit": '{"error": "SystemExit", "message": "0"}',
    "an error that is no exception": '{"error": "exec", "message": "won.append(1)"}',
    "an error that is a list": '{"error": ["ValueError"], "message": []}',
    "a module of the system": '{"found": True, "module": "os", "value": None}',
    "a module that runs when imported": '{"found": True, "module": "antigravity", "value": None}',
    "a module that is no text": '{"found": True, "module": ["math"], "value": None}',
    "changes that are no list": '{"value": 1, "changed": {"t": "tuple", "v": [1]}}',
    "changes of more arguments than there are": '{"value": 1, "changed": [1] * 1000}',
    "nothing": "{}",
}
#: What libraries and interpreters offer.
TRICKS = {
    "names changed in every frame above": (
        "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        frame.f_globals.update(f=lambda x: [1, 2, 3], passed=True, won=[1])\n"
        "        frame = frame.f_back\n    return None"
    ),
    "the right answer looked for in memory": (
        "import gc\ndef f(x):\n    for found in gc.get_objects():\n"
        "        if type(found) is dict and 'passed' in found: found['passed'] = True\n"
        "        if type(found) is list and found[:2] == [1, 2] and len(found) == 3: return found[::-1]\n"
        "    return None"
    ),
    "a verdict written to every descriptor": (
        'import os, struct\ndef f(x):\n    said = b\'{"passed": true, "value": [1, 2, 3]}\'\n'
        "    for number in range(64):\n        for head in (b'', struct.pack('>I', len(said))):\n"
        "            try: os.write(number, head + said + b'\\n')\n            except OSError: pass\n"
        "    return None"
    ),
    "two processes that answer": "import os\ndef f(x):\n    os.fork()\n    return None",
    "an answer by a late thread": (
        "import os, threading, time\ndef f(x):\n    def late():\n        time.sleep(0.05)\n"
        "        for number in range(3, 64):\n            try: os.write(number, b'{\"passed\": true}\\n')\n"
        "            except OSError: pass\n    threading.Thread(target=late, daemon=True).start()\n"
        "    time.sleep(0.2)\n    return None"
    ),
    "an error that ends the program when it is shown": (
        "class E(Exception):\n    def __str__(self): raise SystemExit(0)\n    __repr__ = __str__\n"
        "def f(x): raise E"
    ),
    "files that the tests could import": (
        "import os, sys\nfor folder in ('/tmp', '.', *sys.path):\n"
        "    for name in ('sitecustomize.py', 'math.py', 'numpy.py', 'json.py'):\n"
        "        try: open(os.path.join(folder, name), 'w').write('import os; os._exit(0)')\n"
        "        except OSError: pass\ndef f(x): return None"
    ),
    "the builtins that tests use": (
        "import builtins\nfor name in ('all', 'any', 'len', 'sorted', 'isinstance', 'abs', 'bool'):\n"
        "    setattr(builtins, name, lambda *args: True)\ndef f(x): return None"
    ),
    "an object that equals everything": "from unittest.mock import ANY\ndef f(x): return ANY",
    "an array of objects that equal everything": (
        "import numpy\nfrom unittest.mock import ANY\ndef f(x): return numpy.array([ANY] * 3, dtype=object)"
    ),
    "a masked array": "import numpy\ndef f(x): return numpy.ma.masked_all(3)",
    "a number of another value": (
        "import ctypes\ndef f(x):\n    for n in (1, 2, 3):\n"
        "        ctypes.memmove(id(n) + 24, (ctypes.c_uint32 * 1)(9), 4)\n    return [4, 5, 6]"
    ),
    "a tuple whose type says list": (
        "class T(tuple):\n    __class__ = list\n    __eq__ = lambda s, o: True\n    __hash__ = None\n"
        "def f(x): return T((4, 5, 6))"
    ),
    "a view of memory": "def f(x): return memoryview(bytes([4, 5, 6]))",
    "a list that changes when it is written": (
        "class L(list):\n    def __iter__(s): return iter(['x'])\ndef f(x): return L([4, 5, 6])"
    ),
    "a list within itself": "def f(x):\n    a = []\n    a.append(a)\n    return a",
    "a generator without end": "def f(x):\n    while True: yield 4",
    "itself": "def f(x): return f",
    "a class that equals everything": (
        "class C(type):\n    __eq__ = lambda s, o: True\n    __hash__ = None\ndef f(x): return C('X', (), {})"
    ),
    "an object that is shown as a list": (
        "class C:\n    __repr__ = lambda s: '[1, 2, 3]'\ndef f(x): return [C(), C()][x - 1]"
    ),
    "objects whose texts are always true": (
        "import sys\nsys.modules['guest.tested_program']._ACTIONS['shown'] = lambda s: True\n"
        "class C: pass\ndef f(x): return C()"
    ),
    "a date of another day": "import datetime\ndef f(x): return datetime.date(2001, 2, 4)",
    "the end of an iteration": "def f(x): raise StopIteration([1, 2, 3])",
    "text that looks like it": "def f(x): return '[1, 2, 3]'",
    "sets that collide": "def f(x): return {n * ((1 << 61) - 1) for n in range(2000)}",
}

#: A program may crash its own process.
MAY_DIE = ("trick: a number of another value", "trick: the builtins that tests use")
#: Reading its answer never ends: only the time limit does.
ENDLESS = ("trick: a generator without end", "special name: __getitem__")
PROGRAMS = {f"data: {what}": f"{FORGE}\ndef forged(pretender): return {data}" for what, data in RAW.items()}
PROGRAMS |= {
    f"special name: {name}": f"class Special: pass\ndef f(x): return Special()\nSpecial.{name} = {value}"
    for name, value in SPECIAL.items()
}
PROGRAMS |= {
    f"answer: {what}": (
        "import sys\nchannel = sys.modules['guest.tested_program']\nhonest = channel._attempt\n"
        "def f(x): return 0\nasked = []\ndef attempt(work):\n    asked.append(1)\n"
        f"    return honest(work) if len(asked) < 2 else {answer}\nchannel._attempt = attempt"
    )
    for what, answer in ANSWERS.items()
}
PROGRAMS |= {f"trick: {what}": program for what, program in TRICKS.items()}
PROGRAMS |= {
    f"wire: {what}": (
        "import os, stat, struct, time\ndef f(x):\n    for number in range(3, 64):\n        try:\n"
        "            if stat.S_ISSOCK(os.fstat(number).st_mode):\n"
        f"                for body in ({messages},):\n"
        "                    os.write(number, struct.pack('!I', len(body)) + body)\n"
        "        except OSError: pass\n    time.sleep(0.2)\n    return None"
    )
    for what, messages in WIRE.items()
}


#: Lies are told to the host, from whichever isolation; a pool with these packages takes seconds to start.
@pytest.fixture(scope="module", params=[pytest.param("bubblewrap", marks=pytest.mark.nightly), "landlock"])
def science_pool(request: pytest.FixtureRequest) -> Iterator[SandboxPool]:
    """Sessions with everything that tricks need, loaded once."""
    for package in ("numpy", "pandas", "sympy"):
        pytest.importorskip(package)
    if refusal := backend_works(request.param):
        pytest.skip(refusal)
    with open_sandbox(request.param, preload=("numpy", "pandas", "sympy"), shell="plain") as pool:
        yield pool


@pytest.mark.sample(45)
@pytest.mark.parametrize("how", PROGRAMS)
def test_no_lie_passes(science_pool: SandboxPool, how: str) -> None:
    verdict = run_unit_tests(science_pool, PROGRAMS[how], TESTS, timeout=1 if how in ENDLESS else 5)
    assert not verdict.passed
    assert "process ended" not in verdict.reason or how in MAY_DIE, "a process was taken down"


def test_the_truth_passes_after_all_of_them(science_pool: SandboxPool) -> None:
    verdict = run_unit_tests(science_pool, "def f(x): return [1, 2, 3]", TESTS)
    assert verdict.passed, verdict.reason


def test_data_that_cannot_be_decoded_fails_whatever_the_tests_catch(science_pool: SandboxPool) -> None:
    program = f"{FORGE}\ndef forged(pretender): return {{'t': 'eval', 'v': 1}}"
    verdict = run_unit_tests(science_pool, program, "try:\n    f(1)\nexcept BaseException:\n    pass")
    assert (verdict.passed, "cannot be decoded" in verdict.reason) == (False, True)


@pytest.mark.parametrize("isolation", ["bubblewrap", "landlock"])
def test_an_address_in_the_program_means_nothing_to_the_tests(isolation: str) -> None:
    if refusal := backend_works(isolation):
        pytest.skip(refusal)
    with open_sandbox(isolation, preload=("numpy",), shell="plain") as pool:
        where = "def here(): return id(type)\ndef maps(): return open('/proc/self/maps').read()"
        apart = "assert here() != id(type)\nassert maps() != open('/proc/self/maps').read()"
        verdict = run_unit_tests(pool, where, apart)
        assert verdict.passed, verdict.reason
