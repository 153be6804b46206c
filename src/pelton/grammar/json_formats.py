"""Patterns for the formats of JSON schemas, each within what the format's specification allows.

A pattern may leave out rare spellings (leap seconds, quoted local parts, unescaped international characters), so that
every validator accepts what it generates.
"""

_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_FOURS = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = f"(?:[0-9]{{2}}{_FOURS}|{_FOURS}00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_OFFSET = "(?:Z|[+\\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_DURATION_TIME = "T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)"
_DURATION_DATE = "(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)"
_ATOM = r"[A-Za-z0-9!#$%&'*+\-\/=?\^_`{|}~]{1,20}"
# Labels of host names: no hyphen at an end, and none at both of the third and the fourth place (reserved for IDNA).
_LABEL = "(?:[A-Za-z0-9]{1,2}|[A-Za-z0-9][A-Za-z0-9\\-][A-Za-z0-9](?:[A-Za-z0-9\\-]{0,20}[A-Za-z0-9])?)"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,8}}"
_DOMAIN = rf"(?:{_LABEL}\.){{1,8}}[A-Za-z]{{2,20}}"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_HEX = "[0-9a-fA-F]{1,4}"
_IPV6 = (
    "(?:" + f"(?:{_HEX}:){{7}}{_HEX}|::|::{_HEX}(?::{_HEX}){{0,6}}|{_HEX}(?::{_HEX}){{0,6}}::|"
    + "|".join(f"{_HEX}(?::{_HEX}){{{left - 1}}}::{_HEX}(?::{_HEX}){{0,{6 - left}}}" for left in range(1, 7)) + ")"
)  # fmt: skip
_PERCENT = "%[0-9a-fA-F]{2}"
_PATH_CHARACTER = rf"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|{_PERCENT})"
_SEGMENT = rf"(?:[A-Za-z0-9\-._~!$&'()*+,;=@]|{_PERCENT})"  # without a colon
_SUFFIX = rf"(?:\?(?:{_PATH_CHARACTER}|[\/?])*)?(?:#(?:{_PATH_CHARACTER}|[\/?])*)?"
_PATH = rf"(?:\/{_PATH_CHARACTER}*)*"
_AUTHORITY = rf"(?:{_HOST}|{_IPV4}|\[{_IPV6}\])(?::[1-9][0-9]{{0,3}})?"
_SCHEME = r"[A-Za-z][A-Za-z0-9+\-.]{0,15}"
_URI = rf"{_SCHEME}:(?:\/\/{_AUTHORITY}{_PATH}|\/?{_PATH_CHARACTER}{{1,}}{_PATH}){_SUFFIX}"
_URI_REFERENCE = rf"(?:{_URI}|\/\/{_AUTHORITY}{_PATH}{_SUFFIX}|(?:\/?{_SEGMENT}+{_PATH})?{_SUFFIX})"
_UUID = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_JSON_POINTER = r"(?:\/(?:[^~\/]|~[01])*)*"

FORMATS: dict[str, str] = {
    "date": _DATE,
    "time": _CLOCK + _OFFSET,
    "date-time": f"{_DATE}T{_CLOCK}{_OFFSET}",
    "duration": f"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|[0-9]{{1,9}}W)",
    "email": rf"{_ATOM}(?:\.{_ATOM}){{0,2}}@{_DOMAIN}",
    "idn-email": rf"{_ATOM}(?:\.{_ATOM}){{0,2}}@{_DOMAIN}",
    "hostname": _HOST,
    "idn-hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "ipvanyaddress": f"(?:{_IPV4}|{_IPV6})",
    "uuid": _UUID,
    "uri": _URI,
    "iri": _URI,
    "uri-reference": _URI_REFERENCE,
    "iri-reference": _URI_REFERENCE,
    "json-pointer": _JSON_POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]{{0,9}})(?:#|{_JSON_POINTER})",
}
"""Expressions for the whole string, in the notation of `regex_reader`."""

WITHOUT_CONTENT = frozenset(
    ("password", "binary", "path", "file-path", "directory-path", "int32", "int64", "float", "double")
)
"""Formats which say nothing of a string's characters: hints for programs and forms, or about numbers."""
