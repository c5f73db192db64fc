"""Forms of the tokens that services issue, and of private keys."""

from __future__ import annotations

import re

from ammeter.redaction.key_words import words
from ammeter.redaction.lazy_pattern import pattern

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

ISSUED = pattern(r"(?<![A-Za-z0-9])(?:" + "|".join(_ISSUED_FORMS) + ")")

MIN_UNNAMED_CHARS = 26

UNNAMED = pattern(
    rf"(?<![A-Za-z0-9])(?=[\w.~:=|%-]{{{MIN_UNNAMED_CHARS}}})"
    r"(?:[0-9]{5,16}:[A-Za-z0-9_-]{35}|(?:SK|AC)(?:[0-9A-Fa-f]{32}|[0-9a-z]{32})"
    r"|[0-9a-z]{32}-us[0-9]{1,2}"
    r"|[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}|[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}"
    r"|[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{16,}|[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk|[0-9]{15,16}(?:\||%(?:7C)?)[A-Za-z0-9_-]{27,}"
    r"|4b1d[A-Za-z0-9]{38}(?![A-Za-z0-9])|s\.(?=[A-Za-z]{0,24}[0-9])[A-Za-z0-9]{24}(?![A-Za-z0-9]))"
)
"""Tokens of Telegram and Discord bots, Twilio, Mailchimp, Azure, Terraform, MaxMind, Facebook, ClickHouse and Vault.
Their prefixes also occur in other text. None is shorter than MIN_UNNAMED_CHARS."""

AWS = pattern(
    r"(?P<head>aws[^\n]{0,20}?(?:key|pw|pass|token)[^\n]{0,30}?[\"'])[0-9A-Za-z/+]{40}(?=[\"'\\])", re.IGNORECASE
)
"""A secret key of AWS, which has no prefix, detected by the text around it."""

PEM = pattern(r"-----BEGIN([A-Z0-9 _]{1,60})-----.*?(?:-----END\1-----|\Z)|PuTTY-User-Key-File-[0-9].*\Z", re.DOTALL)

HINTS = words(
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
    scauth_ authress_ sat. v1.0- s-s4t2 access- squ_ sqp_ sqa_ sl. pk. sk. tk. zxlk aaaaaaaaaaaaaaaaaaaa hooks. .ey
    ap0 ap1 ap2 ap3 ap4 ap5 ap6 ap7 ap8 ap9 apa apb apc apd ape apf
    """
)
"""Parts of the forms in ISSUED, in lower case. A text without any of them contains no such token."""
