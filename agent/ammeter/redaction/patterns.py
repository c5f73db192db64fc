"""Finds secrets in text by their form.

The forms are tokens of known services, userinfo and query of URLs, headers, options, and `name=value`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Collection
from functools import partial
from urllib.parse import unquote

from ammeter.redaction.keys import Kind, kind, words

GONE = "(not sent)"
"""Replacement of a secret."""


_GAP = "\ue0f1"
"""Stands for GONE during the search: a single character, which no pattern can split into two words."""


def cut(said: str) -> str:
    """Returns the text without secrets of a known form.

    A text without any is returned unchanged.
    """
    small = said.lower()
    if GONE in said:
        said = said.replace(GONE, _GAP)
    for hints, look in _STEPS:
        if any(hint in small for hint in hints):
            said = look(said)
    return said.replace(_GAP, GONE) if _GAP in said else said


def is_number(said: str) -> bool:
    """Returns whether a text is a number, such as 4096, 1e6, '300B' or '1.5 T'."""
    return bool(_NUMBER.fullmatch(said))


_NUMBER = re.compile(r"\s*[+-]?[0-9][0-9_,.]{0,15}(?:e[+-]?[0-9]{1,3})?\s?[kmgtb]?\s*", re.IGNORECASE)

_PIECE = r"(?:[A-Z]?[a-z]{1,20}[0-9]{0,3}|[0-9]{1,3})"
_NAMED = rf"{_PIECE}(?:(?:[_-]{_PIECE})++(?![A-Za-z0-9_-])|(?=\.[A-Za-z0-9_]))"
"""Words and short numbers in the names of modules and models: encoder1.weight, embeddings-v3."""

_ISSUED_FORMS = (
    # Hugging Face and others with a prefix of letters. A lower-case word after the prefix is not a token.
    rf"(?:hf|api_org|r8|gsk|fw|tgp_v1|nvapi|jina|lsv2_(?:pt|sk)|pcsk|voyage)[_-](?!{_NAMED})"
    r"(?=[A-Za-z0-9_-]{0,60}[A-Z0-9])[A-Za-z0-9_-]{6,}",
    r"(?:hf|api_org)_[a-z]{18,}",
    r"(?:sk|rk|pk)-(?!learn|image|video)(?=[A-Za-z0-9_-]{0,60}[A-Z0-9])[A-Za-z0-9_-]{6,}",
    r"(?:sk|rk|pk|whsec|mk)_(?:live|test|prod)_[A-Za-z0-9]{6,}",
    r"whsec_[A-Za-z0-9+/=]{8,}",
    r"gh[pousr]_[A-Za-z0-9_]{6,}",
    r"github_pat_\w{6,}",
    r"gl(?:pat|dt|ptt|ft|soat|rt|imt|agent|cbt|ffct|oas)-[A-Za-z0-9_-]{6,}",
    r"GR1348941[A-Za-z0-9_-]{6,}",
    r"(?i:xox[a-eoprs](?:\.xox[a-eoprs])?-[a-z0-9%-]{3,})|xapp-[A-Za-z0-9-]{6,}",
    r"(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA|AGPA|ANPA|A3T[A-Z0-9])[A-Z0-9]{10,}",
    r"AIza[A-Za-z0-9_-]{16,}|ya29\.[A-Za-z0-9_-]{6,}|GOCSPX-[A-Za-z0-9_-]{6,}|1//0[A-Za-z0-9_-]{16,}",
    r"npm_[A-Za-z0-9]{16,}|pypi-[A-Za-z0-9_-]{12,}|rubygems_[a-f0-9]{16,}|CLOJARS_[A-Za-z0-9]{16,}",
    r"do[opr]_v1_[a-f0-9]{16,}",
    r"SG\.(?:[A-Za-z0-9_=.-]{60,}|[A-Za-z0-9_=-]{6,}\.[A-Za-z0-9_=-]{6,})|key-[0-9a-zA-Z]{32}|(?:pub|priv)key-[0-9a-f]{32}|xkeysib-[A-Za-z0-9-]{16,}",
    r"EAA[A-Za-z0-9]{20,}|IGQ[A-Za-z0-9_-]{20,}",
    r"shp(?:at|ca|pa|ss)_[A-Za-z0-9]{8,}|sq0(?:atp|csp|idp)-[A-Za-z0-9_\\-]{8,}|EAAA[A-Za-z0-9_-]{20,}",
    r"hv[sbr]\.[A-Za-z0-9_-]{8,}|hvs\.CAES[A-Za-z0-9_-]+",
    r"ATATT3[A-Za-z0-9_=-]{8,}|ATCTT3[A-Za-z0-9_=-]{8,}|ATBB[A-Za-z0-9_=-]{8,}|ATSTT[A-Za-z0-9_=-]{8,}",
    r"lin_(?:api|oauth)_[A-Za-z0-9]{8,}|pul-[a-f0-9]{16,}|dapi[a-f0-9]{16,}(?:-[0-9])?|dckr_(?:pat|oat)_[A-Za-z0-9_-]{8,}",
    r"xai-[A-Za-z0-9]{16,}|pplx-[A-Za-z0-9]{8,}|nvapi-[A-Za-z0-9_-]{8,}|AGE-SECRET-KEY-1[A-Za-z0-9]{8,}|wandb_v1_\w{8,}",
    r"figd_[A-Za-z0-9_-]{8,}|PMAK-[a-f0-9-]{16,}|glc_[A-Za-z0-9+/=]{16,}|glsa_[A-Za-z0-9_]{16,}|eyJrIjoi[A-Za-z0-9+/=]{8,}",
    r"NR(?:AK|II|AA|RA|JS)-[A-Za-z0-9-]{8,}|sntry[su]_[A-Za-z0-9+/=_]{8,}|dt0[a-z][0-9]{2}\.[A-Za-z0-9]{8,}(?:\.[A-Za-z0-9]+)?",
    r"p8e-[a-z0-9]{16,}|EZ[AT]K[A-Za-z0-9]{16,}|FLW(?:SECK|PUBK)[A-Za-z0-9_-]{8,}|tfp_[A-Za-z0-9_.=-]{16,}",
    r"f[mo][12][ars]?_[A-Za-z0-9+/=_-]{16,}|FlyV1 [A-Za-z0-9+/=_,-]{16,}|(?:CFPAT|HRKU)-[A-Za-z0-9_-]{8,}",
    r"dp\.(?:pt|st|ct|scim|audit)\.[A-Za-z0-9.]{8,}|duffel_(?:test|live)_[A-Za-z0-9_=-]{8,}|fio-u-[A-Za-z0-9_=-]{8,}",
    r"ico-[A-Za-z0-9]{32}|(?:live|test)_(?:pub_)?[a-f0-9]{31,}|pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_.=-]{8,}|rdme_[a-z0-9]{16,}",
    r"shippo_(?:live|test)_[A-Fa-f0-9]{16,}|sgp_[A-Za-z0-9_]{16,}|sm_(?:aat|pat|sat)_[A-Za-z0-9_]{8,}|pnu_[A-Za-z0-9]{16,}",
    r"tk-us-[A-Za-z0-9_-]{16,}|sha256~[A-Za-z0-9_-]{20,}|API-[A-Z0-9]{26}|t1\.[A-Z0-9a-z_-]+=*\.[A-Z0-9a-z_-]{20,}=*",
    r"ops_eyJ[A-Za-z0-9+/=_-]{8,}|A3-[A-Z0-9]{6}-[A-Z0-9]{6,}(?:-[A-Z0-9]{5,6}){2,6}|secret_[A-Za-z0-9]{32,}|ntn_[A-Za-z0-9]{16,}",
    r"pat[A-Za-z0-9]{14}\.[a-f0-9]{16,}|patn?_[A-Za-z0-9]{16,}|cio[a-zA-Z0-9]{32}",
    r"AccountKey=[A-Za-z0-9+/=]{8,}|SharedAccessKey=[A-Za-z0-9+/=]{8,}",
    r"AQE[A-Za-z0-9_-]{60,}|Atza\|[A-Za-z0-9%_|-]{20,}|amzn\.mws\.[a-f0-9-]{16,}|T3BlbkFJ[A-Za-z0-9_-]{8,}",
    r"eyJ[A-Za-z0-9_=-]+(?:\.[A-Za-z0-9_=-]+){1,4}\.?|eyJ[A-Za-z0-9_/+=-]{24,}",
    r"cv[abs]_[A-Za-z0-9]{24,}|ddp_[A-Za-z0-9]{30,}|bkua_[a-z0-9]{16,}|ckey_[a-z0-9]{16,}|oy2[a-z0-9]{43}|brk_[A-Za-z0-9]{24,}",
    r"LTAI(?=[A-Za-z0-9]{0,60}[0-9])[A-Za-z0-9]{12,}|AKC(?=[A-Za-z]{0,80}[0-9])[A-Za-z0-9]{10,}|AP[0-9A-F](?=[A-Za-z]{0,80}[0-9])[A-Za-z0-9]{17,}|cmVmd[A-Za-z0-9]{40,}",
    r"ABSK[A-Za-z0-9+/]{40,}={0,2}|bedrock-api-key-[A-Za-z0-9+/=_-]{8,}|dnkey-[A-Za-z0-9=_-]{26,}|AQVN[A-Za-z0-9_-]{30,}",
    r"(?:sc|ext|scauth|authress)_[A-Za-z0-9]{5,30}\.[A-Za-z0-9]{4,6}\.acc[_-][A-Za-z0-9-]{10,32}\.[A-Za-z0-9+/_=-]{16,}",
    r"(?:pat|sat)\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}|v1\.0-[a-f0-9]{24}-[a-f0-9]{64,}|s-s4t2(?:ud|af)-[a-f0-9]{32,}",
    r"access-(?:sandbox|development|production)-[0-9a-f-]{32,}|sq[upa]_[A-Za-z0-9]{30,}|sl\.[A-Za-z0-9_=-]{100,}",
    r"[pst]k\.[A-Za-z0-9_-]{40,}\.[A-Za-z0-9_-]{16,}|(?:ZXlK|A{20})[A-Za-z0-9%+/\\_=-]{40,}|hooks\.slack\.com/\w+/[\w/+-]{8,}",
    r"ey[A-Za-z0-9]{17,}\.ey[A-Za-z0-9/\\_-]{17,}(?:\.[A-Za-z0-9/\\_=-]*)?",
)
"""Tokens of services by prefix, from each service's description of its tokens and from secret scanners for
repositories."""

_ISSUED = re.compile(r"(?<![A-Za-z0-9])(?:" + "|".join(_ISSUED_FORMS) + ")")

_UNNAMED = re.compile(
    r"(?<![A-Za-z0-9])(?=[\w.~:=|%-]{26})(?:[0-9]{5,16}:[A-Za-z0-9_-]{35}|(?:SK|AC)(?:[0-9A-Fa-f]{32}|[0-9a-z]{32})"
    r"|[0-9a-z]{32}-us[0-9]{1,2}"
    r"|[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}|[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}"
    r"|[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{16,}|[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk|[0-9]{15,16}(?:\||%(?:7C)?)[A-Za-z0-9_-]{27,}"
    r"|4b1d[A-Za-z0-9]{38}(?![A-Za-z0-9])|s\.(?=[A-Za-z]{0,24}[0-9])[A-Za-z0-9]{24}(?![A-Za-z0-9]))"
)
"""Tokens of Telegram and Discord bots, Twilio, Mailchimp, Azure, Terraform, MaxMind, Facebook, ClickHouse and Vault.
Their prefixes also occur in other text."""

_AWS = re.compile(
    r"(?P<head>aws[^\n]{0,20}?(?:key|pw|pass|token)[^\n]{0,30}?[\"'])[0-9A-Za-z/+]{40}(?=[\"'\\])", re.IGNORECASE
)
"""A secret key of AWS, which has no prefix, detected by the text around it."""

_PEM = re.compile(
    r"-----BEGIN([A-Z0-9 _]{1,60})-----.*?(?:-----END\1-----|\Z)|PuTTY-User-Key-File-[0-9].*\Z", re.DOTALL
)

_URL = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*+:)?//(?:[^\s/@\"'<>`\\]{1,300}@[^\s\"'<>`|\\^{}]*|[^\s\"'<>`|\\^{}]+)")
_AUTHORITY = re.compile(r"(?P<scheme>[^/]*//)(?P<rest>.*)", re.DOTALL)
_PATH_SECRETS = re.compile(
    r"(?P<kept>/(?:services|workflows|triggers|api/webhooks|webhooks?|webhookb2|incomingwebhook|incoming|hooks?(?:/catch|/incoming)?"
    r"|with/key|soap/v3[^/]{0,3}|integration/[^/]+/enqueue))/(?P<gone>[^?#]+)|(?P<bot>/(?:file/)?bot)[0-9]{5,}:[^/?#]+",
    re.IGNORECASE,
)
_HOOK_HOSTS = re.compile(
    r"^(?:hooks\.|webhook|[^/]*\.webhook\.|maker\.ifttt\.com|hc-ping\.com|[^/]*\.pipedream\.net|discord(?:app)?\.com/api/webhooks"
    r"|[^/]*\.logic\.azure\.com|outlook\.office(?:365)?\.com/webhook|events\.pagerduty\.com/integration|ntfy\.sh|api\.telegram\.org)",
    re.IGNORECASE,
)
_NAMELESS = re.compile(r"[A-Za-z][a-z_.-]{0,14}[0-9]{0,3}")
"""User names that may remain in a URL, because they are not secret."""
_SIGNED = words(
    """
    sig signature key code auth hash hmac policy credential sign token st ticket nonce pw p pass user_token k s
    x-amz-signature x-amz-credential x-amz-security-token x-goog-signature x-goog-credential awsaccesskeyid
    googleaccessid x-oss-signature ossaccesskeyid x-cos-security-token hdnts hdnea __token__ q-signature q-ak
    """
)


def _url(found: re.Match[str]) -> str:
    """Removes userinfo, webhook paths, and secrets in query and fragment from a URL."""
    said = found[0]
    parts = _AUTHORITY.fullmatch(said)
    assert parts is not None
    scheme, rest = parts["scheme"], parts["rest"]
    rest = _without_userinfo(scheme, rest)
    place, mark, query = rest.partition("?")
    place, hash_, fragment = place.partition("#")
    if not mark:
        query = ""
    if _HOOK_HOSTS.search(place.rpartition("@")[2]):
        host, slash, path = place.partition("/")
        place = f"{host}/{_GAP}" if slash and path else place
    else:
        place = _PATH_SECRETS.sub(_path, place)
    query = re.sub(r"(?:^|(?<=[&;#?]))[^&;#?]+", _parameter, query)
    fragment = re.sub(r"(?:^|(?<=[&;#?]))[^&;#?]+", _parameter, fragment)
    return f"{scheme}{place}{hash_}{fragment}{mark}{query}"


def _without_userinfo(scheme: str, rest: str) -> str:
    """Removes userinfo, which ends at the last @ before the path.

    A password that contains a slash also ends at an @; a port does not.
    """
    authority = re.match(r"[^/?#]*", rest)
    head = authority[0] if authority else ""
    user, at, _ = head.rpartition("@")
    if not at:
        whole = re.match(r"([^/?#@:\[\]]*):(?![0-9]{1,5}(?:[/?#]|$))\S*@", rest)
        if whole is None:
            return rest
        return f"{_GAP}@{rest[whole.end() :]}"
    name, colon, _ = user.partition(":")
    web = scheme.lower().endswith(("http://", "https://", "ftp://", "ws://", "wss://")) or scheme == "//"
    harmless = not colon and not web and _NAMELESS.fullmatch(name)
    more = re.match(r"[^\s]*:[^\s/]*@", rest[len(user) + 1 :])  # a second @: the first was part of the password
    if more is not None:
        return f"{_GAP}@{rest[len(user) + 1 + more.end() :]}"
    return rest if harmless else f"{_GAP}@{rest[len(user) + 1 :]}"


def _path(found: re.Match[str]) -> str:
    return f"{found['bot']}{_GAP}" if found["bot"] else f"{found['kept']}/{_GAP}"


def _parameter(found: re.Match[str]) -> str:
    name, equals, value = found[0].partition("=")
    if not equals or not value:
        return _GAP if _looks_random(name) else found[0]
    plain = unquote(value)
    named = kind(unquote(name))
    number = is_number(plain) and named is not Kind.SECRET
    if not number and (
        named is not Kind.PLAIN or name.lower() in _SIGNED or _looks_random(plain) or cut(plain) != plain
    ):
        return f"{name}={_GAP}"
    return found[0]


def _looks_random(said: str) -> bool:
    """Returns whether a text contains a long unbroken mix of letters and digits.

    In a query, such text usually grants access.
    """
    return any(
        len(piece) >= 20 and re.search(r"[0-9]", piece) and re.search(r"[A-Za-z]", piece)
        for piece in re.split(r"[^A-Za-z0-9+_]", said)
    )


_LOGIN = re.compile(
    r"(?<![\w:/@.+-])[\w.+-]{1,64}:(?:[^\s@/\"':,;]{3,}|[^\s@\"']{3,}(?=@tcp\())@(?=[\w\[(])(?!sha(?:256|512):)"
)


def _login(_: re.Match[str]) -> str:
    """Replaces user:password@host without a scheme."""
    return f"{_GAP}@"


_HEADER = re.compile(
    r"(?P<head>\b(?:proxy-)?authorization|\bset-cookie2?|\bcookie|\bx-(?:[a-z]{1,20}-){0,4}(?:token|key|secret|auth|signature|password))"
    r"(?P<colon>\\*[\"']?\s{0,3}[:=]\s{0,3}(?:b?\\*[\"'])?)(?P<value>[^\r\n\"'}]+)",
    re.IGNORECASE,
)


def _header(found: re.Match[str]) -> str:
    value = found["value"].strip().rstrip(",)]")
    return found[0] if value in _NOTHING or value.startswith(_GAP) else f"{found['head']}{found['colon']}{_GAP}"


_SCHEME = re.compile(
    r"\b(?P<scheme>Bearer|Basic|Negotiate|ApiKey|Splunk|SSWS|Token)(?P<space>\s+|%20)(?P<value>[A-Za-z0-9._~+/=:-]{4,})",
    re.IGNORECASE,
)
_ABOUT_IT = re.compile(
    r"(?:tokens?|auth\w*|schemes?|headers?|credentials?|error|realm|format|type|required|missing|is|was|not|has|of|for|in)\b",
    re.IGNORECASE,
)


def _scheme(found: re.Match[str]) -> str:
    """Replaces the value after `Bearer` or another scheme.

    After other schemes the value is replaced only if it is clearly a secret. The names of the other schemes are also
    common words.
    """
    scheme, value = found["scheme"].lower(), found["value"]
    if scheme == "bearer":
        hidden = not _ABOUT_IT.match(value)
    elif scheme == "basic":
        hidden = _is_basic(value)
    else:
        hidden = len(value) >= 16 and _looks_random(value)
    return f"{found['scheme']}{found['space']}{_GAP}" if hidden else found[0]


def _is_basic(value: str) -> bool:
    try:
        return ":" in base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return False


_QUOTED = r"(?P<mark>\\*[\"'])(?:(?!(?P=mark)).)*+(?:(?P=mark)|\Z)"
"""Quoted text. The quotes may be escaped, and the closing quote may be missing."""

_OPTION = re.compile(r"(?<![\w-])(?P<key>-{1,2}[A-Za-z][\w.-]*+)(?P<sign>\\*[\"']?(?:\s*,\s*|\s+|=)|(?=[\"']))")
_OPTION_VALUE = re.compile(_QUOTED + r"|[^\s\"'`]\S*?(?=[\"'`\]})>,;]*(?:\s|\Z))", re.DOTALL)


def _options(said: str) -> str:
    """Removes secrets from `--token x`, also in the form of a printed list: '--token', 'x'."""
    return _scanned(said, _OPTION, _OPTION_VALUE, _may_open, _opens)


_USER_OPTIONS = words("-u --user --proxy-user")


def _may_open(found: re.Match[str]) -> bool:
    if found["key"] in _USER_OPTIONS:
        return True
    return found["sign"][-1:] not in ("", "=") and kind(found["key"]) is not Kind.PLAIN


def _opens(found: re.Match[str], value: str) -> bool:
    if found["key"] in _USER_OPTIONS:
        return ":" in value
    return not value.startswith("--") and value.strip("=:>?+|") != "" and _hides(found["key"], value)


_NAME = re.compile(
    r"(?<![\w.\-])(?P<key>[\w.\-\[\]/]*[^\W\d_][\w.\-\[\]/]*+)"
    r"(?P<sign>\\*[\"']?\]?(?:[ \t]{4,40}+|\s{0,3})"
    r"(?::{1,3}=|(?:[?+]|\|\|)=|=>|->|==?|::?(?!//)|,(?=\s{0,3}b?\\*[\"']))"
    r"(?:[ \t]{4,40}+|\s{0,3})(?:[bBrRuUfF](?=\\*[\"']))?)"
)
_NAME_VALUE = re.compile(_QUOTED + r"|[^\s\"'`&\[{(][^\s&]*|[\[{(][^\])}]*[\])}]?", re.DOTALL)
_KEY_NEXT = re.compile(r"\\*([\"'])[^\"']*\1\s*:")
_WORDS_BEFORE = re.compile(r"(?:[A-Za-z_]{2,20}[ -]){1,2}\Z")


def _assignments(said: str) -> str:
    """Removes the values of `name=value`, `name: value` and the like, if the name is secret."""
    return _scanned(said, _NAME, _NAME_VALUE, _may_be_assigned, _is_assigned)


def _may_be_assigned(found: re.Match[str]) -> bool:
    return kind(found["key"]) is not Kind.PLAIN or _key_before(found) is Kind.SECRET


def _key_before(found: re.Match[str]) -> Kind:
    """Returns the kind of a key with the words before it.

    An example is 'secret access key = '.
    """
    before = _WORDS_BEFORE.search(found.string[max(0, found.start() - 44) : found.start()])
    return kind(f"{before[0]}{found['key']}") if before else Kind.PLAIN


def _is_assigned(found: re.Match[str], value: str) -> bool:
    key = found["key"]
    if "," in found["sign"]:  # a pair in a printed list
        is_a_key = _KEY_NEXT.match(found.string, found.end())
        return kind(key) is Kind.SECRET and _hides(key, value) and not value.startswith("-") and not is_a_key
    if _hides(key, value, said=found["sign"][:1] in ("'", '"', "\\")):
        return True
    return _key_before(found) is Kind.SECRET and _hides("secret", value)


_QUOTE = r"\\*[\"']"
_PAIR = re.compile(
    rf"{_QUOTE}(?:name|key|header|env){_QUOTE}\s*:\s*{_QUOTE}(?P<key>[^\"'\\]{{1,100}}){_QUOTE}\s*,\s*"
    rf"{_QUOTE}(?:value|content|default){_QUOTE}\s*:\s*",
    re.IGNORECASE,
)


_ATTRIBUTES = re.compile(
    r"\b(?:name|key)\s{0,3}=\s{0,3}\\*[\"'](?P<key>[^\"'\\<>]{1,100})\\*[\"']\s{1,20}+(?:value|content|default)\s{0,3}=\s{0,3}",
    re.IGNORECASE,
)


def _pairs(said: str) -> str:
    """Removes secrets from `{"name": "PASSWORD", "value": "x"}` and `<add key="Password" value="x"/>`.

    Settings are often printed in these forms.
    """
    for pair in (_PAIR, _ATTRIBUTES):
        said = _scanned(said, pair, _NAME_VALUE, _may_be_named, _is_named)
    return said


def _may_be_named(found: re.Match[str]) -> bool:
    return kind(found["key"]) is not Kind.PLAIN


def _is_named(found: re.Match[str], value: str) -> bool:
    return _hides(found["key"], value, said=True)


def _scanned(
    said: str,
    head: re.Pattern[str],
    tail: re.Pattern[str],
    may: Callable[[re.Match[str]], bool],
    hides: Callable[[re.Match[str], str], bool],
) -> str:
    """Replaces the values after names for which `hides` is true; searches other values as well.

    may: whether the value is matched at all, because a value can be as long as the rest of the text.
    """
    parts: list[str] = []
    at = looked = 0
    while found := head.search(said, looked):
        looked = found.end()
        value = tail.match(said, looked) if may(found) else None
        if value is not None and hides(found, _bare(value[0])):
            parts += (said[at:looked], _as_it_was(value))
            at = looked = max(value.end(), looked)
    return "".join((*parts, said[at:])) if parts else said


_SPOKEN = re.compile(
    r"\b(?P<head>(?P<before>\w{0,40}?)(?P<key>pass(?:word|wd|phrase|code)|pwd|secret|token"
    r"|(?:api|access|secret|private)[ _-]?key"
    r"|credentials?|(?<=\w)(?:key|pass|pw))[\"'\]]{0,2}(?:\s+(?:is|was|of|given|for\s+\S+\s+is))?\s+)(?P<value>(?P<mark>[\"'`])(?:(?!(?P=mark)).){3,}(?P=mark)"
    r"|(?=[^\s]*[0-9$!#%&*+])[^\s\"'`(]{5,})",
    re.IGNORECASE,
)


def _spoken(found: re.Match[str]) -> str:
    """Replaces secrets in `password is 'x'` and `the token x1y2z3`."""
    value = _bare(found["value"])
    mark = found["mark"] or ""
    if found["before"] and kind(found["before"] + found["key"]) is not Kind.SECRET:
        return found[0]
    return found[0] if is_number(value) or value.startswith(_GAP) else f"{found['head']}{mark}{_GAP}{mark}"


_ELEMENT = re.compile(r"<(?P<name>[A-Za-z][\w.:-]{0,60})(?P<more>[^<>]{0,200})>(?P<value>[^<>]+)(?=</(?P=name)>)")


def _element(found: re.Match[str]) -> str:
    name = found["name"]
    return f"<{name}{found['more']}>{_GAP}" if _hides(name, found["value"]) else found[0]


def _hides(key: str, value: str, *, said: bool = False) -> bool:
    """Returns whether the value of this key is withheld.

    said: whether the key is certainly a key, and not a word in a sentence.
    """
    if value.strip("([{}]),; ") in _NOTHING or value.startswith(_GAP):
        return False
    found = kind(key)
    if found is Kind.SECRET:
        return not (is_number(value.rstrip(")]},;")) and len(value) < 8)
    if found is Kind.TEXT:
        return not is_number(value.rstrip(")]},;")) and (
            said or key.strip("-").lower() not in ("key", "auth", "private")
        )
    return False


_NOTHING = frozenset(("", "None", "none", "null", "nil", "True", "False", "true", "false", "undefined", "...", "***"))


def _bare(value: str) -> str:
    return value.strip("\\").strip("\"'").strip("\\")


def _as_it_was(found: re.Match[str]) -> str:
    """Returns the replacement of a value, in quotes if the value was quoted."""
    value, mark = found[0], found["mark"] or ""
    if mark:
        closed = value.endswith(mark) and len(value) >= 2 * len(mark)
        return f"{mark}{_GAP}{mark if closed else ''}"
    end = re.search(r"[)\]},;]*\Z", value)
    return f"{_GAP}{end[0] if end and value[0] not in '[{(' else ''}"


_HINTS = words(
    """
    hf_ hf- api_org r8_ r8- gsk_ gsk- fw_ fw- tgp_v1 nvapi jina_ jina- lsv2_ pcsk voyage_ voyage- sk- rk- pk-
    sk_ rk_ pk_ mk_ whsec ghp_ gho_ ghu_ ghs_ ghr_ github_pat glpat- gldt- glptt- glft- glsoat- glrt- glimt-
    glagent- glcbt- glffct- gloas- gr1348941 xoxa xoxb xoxc xoxd xoxe xoxo xoxp xoxr xoxs xapp- akia asia abia
    acca aroa aida agpa anpa a3t aiza ya29. gocspx- 1//0 npm_ pypi- rubygems_ clojars_ oy2 dop_ doo_ dor_ sg.
    key- xkeysib eaa igq shpat shpca shppa shpss sq0 hvs. hvb. hvr. atatt3 atctt3 atbb atstt lin_ pul- dapi
    dckr_ xai- pplx- age-secret wandb_v1 figd_ pmak- glc_ glsa_ nrak- nrii- nraa- nrra- nrjs- sntry dt0 p8e-
    ezak eztk flw tfp_ fo1 fm1 fm2 flyv1 cfpat- hrku- dp. duffel_ fio-u- ico- live_ test_ pscale_ rdme_ shippo_
    sgp_ sm_ pnu_ tk-us- sha256~ api- t1. ops_ a3- secret_ ntn_ pat cio accountkey= sharedaccesskey= aqe atza|
    amzn. t3blbkfj eyj cva_ cvb_ cvs_ ddp_ bkua_ ckey_ brk_ ltai akc cmvmd absk bedrock- dnkey- aqvn sc_ ext_
    scauth_ authress_ sat. v1.0- s-s4t2 ap access- squ_ sqp_ sqa_ sl. pk. sk. tk. zxlk aaaaaaaaaaaaaaaaaaaa hooks. .ey
    """
)

_STEPS: tuple[tuple[Collection[str], Callable[[str], str]], ...] = (
    (("-----begin", "putty-user-key"), partial(_PEM.sub, _GAP)),
    (("//",), partial(_URL.sub, _url)),
    (("@",), partial(_LOGIN.sub, _login)),
    (("authorization", "cookie", "x-"), partial(_HEADER.sub, _header)),
    (("bearer", "basic", "negotiate", "apikey", "splunk", "ssws", "token"), partial(_SCHEME.sub, _scheme)),
    (("-",), _options),
    (("value", "content", "default"), _pairs),
    (("=", ":", "->", ","), _assignments),
    (("pass", "pwd", "secret", "token", "key", "credential"), partial(_SPOKEN.sub, _spoken)),
    (("</",), partial(_ELEMENT.sub, _element)),
    (_HINTS, partial(_ISSUED.sub, _GAP)),
    (("aws",), partial(_AWS.sub, rf"\g<head>{_GAP}")),
    (("",), partial(_UNNAMED.sub, _GAP)),
)
"""(substrings, function): the function runs if the text in lower case contains one of the substrings."""
