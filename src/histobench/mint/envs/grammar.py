"""The text dialect as grammars (GBNF of llama.cpp): who obeys them writes well-formed actions only."""

from __future__ import annotations

#: One line that is no sentence: no full stop with a space after it.
_SOLUTION = 'solution ::= "<solution>" piece{1,80} "</solution>"\npiece ::= [^<\\n.] | "." [^<\\n. ]\n'
#: Code or a solution, and no thought before it: small models go round in circles there until their tokens are
#: spent. No "<" inside: a tag ends what it opened.
ACTION_GRAMMAR = (
    f'root ::= execute | solution\nexecute ::= "<execute>" [^<]{{1,600}} "</execute>"\n{_SOLUTION}'
)
#: In the last step, which the agent is told to use for a solution: only that.
SOLUTION_GRAMMAR = f"root ::= solution\n{_SOLUTION}"
