"""The text dialect as a grammar (GBNF of llama.cpp): who obeys it writes well-formed actions only."""

from __future__ import annotations

#: An optional thought of one line, then code or a solution. No "<" inside: a tag ends what it opened. An
#: answer that reaches its limit of tokens can still end inside a tag.
ACTION_GRAMMAR = r"""root ::= thought? (execute | solution)
thought ::= "<thought>" [^<\n]+ "</thought>\n"
execute ::= "<execute>" [^<]+ "</execute>"
solution ::= "<solution>" [^<\n]+ "</solution>"
"""
