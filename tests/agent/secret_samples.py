"""Two hundred secrets as programs write them.

Each is made from parts when it is asked for, so that nothing here is one itself; bodies are random, from a fixed seed.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import json
import random
import string
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

LETTERS = string.ascii_letters + string.digits
HEX = string.hexdigits[:16]
SMALL = string.ascii_lowercase + string.digits
LARGE = string.ascii_uppercase + "234567"


@dataclasses.dataclass(frozen=True)
class Sample:
    """value: for a config, below the key `said`, which says nothing. secret: what must not be left of it."""

    name: str
    value: Any
    secret: str

    @property
    def text(self) -> str:
        """The same as a program would print it."""
        return self.value if isinstance(self.value, str) else repr(self.value)


class Box:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class Slots:
    __slots__ = ("lr", "password")

    def __init__(self, password: str) -> None:
        self.lr, self.password = 0.1, password


@dataclasses.dataclass
class Login:
    user: str
    api_key: str


Pair = namedtuple("Pair", "user passphrase")

KEYS = """
    password passwd pwd passphrase pass pw db_pass dbPassword DB_PASSWORD user_pw smtp-password root.password
    pgpassword secret client_secret clientSecret CLIENT-SECRET app_secret mysecret aws_secret_access_key
    SecretAccessKey secret_key api_key api-key apikey apiKey APIKey API_KEY x-api-key wandb.api_key openai_key
    WANDB_KEY WANDB_API_KEY wandbKey access_key accessKey AWS_ACCESS_KEY_ID access-key-id private_key privateKey
    ssh_key ssh-key sshkey gpg_key signing_key encryption_key account_key storage_key service_key license_key
    stripe_key sendgrid_key key master_key deploy_key token auth_token authToken access_token refreshToken
    hf_token hfToken HF_TOKEN hub_token HUGGING_FACE_HUB_TOKEN bot_token id_token github_token token_value
    wandb_token session_token csrf_token bearer_token tokenSecret authorization Authorization
    proxy-authorization auth basic_auth bearer jwt cookie set-cookie session_id sessionid credential credentials
    creds dsn sentry_dsn database_url DATABASE_URL db_uri redis_url broker_url connection_string webhook
    webhook_url slack_webhook slackWebhookUrl github_pat pat oauth2 otp pin mnemonic seed_phrase sas_url
    contraseña passwort 密码
    """


def _body(rng: random.Random, signs: str, length: int) -> str:
    """At least one letter of each kind that the signs have: else it might be a word."""
    while True:
        made = "".join(rng.choice(signs) for _ in range(length))
        wanted = [kind for kind in (str.isdigit, str.isupper, str.islower) if any(map(kind, signs))]
        if all(any(map(kind, made)) for kind in wanted) or length < 6:
            return made


ISSUED: tuple[tuple[str, str, str, int], ...] = (
    *(
        ("huggingface", "hf" + "_", LETTERS, 34),
        ("openai", "sk" + "-", LETTERS, 48),
        ("openai-project", "sk-" + "proj-", LETTERS, 60),
    ),
    *(
        ("anthropic", "sk-" + "ant-api03-", LETTERS, 90),
        ("github", "gh" + "p_", LETTERS, 36),
        ("github-oauth", "gh" + "o_", LETTERS, 36),
    ),
    *(
        ("github-app", "gh" + "s_", LETTERS, 36),
        ("github-fine", "github" + "_pat_", LETTERS, 82),
        ("gitlab", "gl" + "pat-", LETTERS, 20),
    ),
    *(
        ("gitlab-deploy", "gl" + "dt-", LETTERS, 20),
        ("slack-bot", "xo" + "xb-", string.digits, 24),
        ("slack-user", "xo" + "xp-", LETTERS, 40),
    ),
    *(
        ("slack-app", "xa" + "pp-1-", LETTERS, 40),
        ("aws", "AK" + "IA", LARGE, 16),
        ("aws-session", "AS" + "IA", LARGE, 16),
    ),
    *(
        ("google", "AI" + "za", LETTERS, 35),
        ("google-oauth", "ya" + "29.", LETTERS, 60),
        ("google-client", "GOC" + "SPX-", LETTERS, 28),
    ),
    *(
        ("npm", "np" + "m_", LETTERS, 36),
        ("pypi", "py" + "pi-AgEIcHlwaS5vcmc", LETTERS, 60),
        ("rubygems", "rub" + "ygems_", HEX, 48),
    ),
    *(
        ("digitalocean", "do" + "p_v1_", HEX, 64),
        ("stripe", "sk" + "_live_", LETTERS, 24),
        ("stripe-restricted", "rk" + "_live_", LETTERS, 24),
    ),
    *(
        ("shopify", "sh" + "pat_", HEX, 32),
        ("square", "sq0" + "atp-", LETTERS, 22),
        ("vault", "hv" + "s.", LETTERS, 90),
    ),
    *(
        ("atlassian", "ATA" + "TT3", LETTERS, 60),
        ("linear", "lin" + "_api_", LETTERS, 40),
        ("pulumi", "pu" + "l-", HEX, 40),
    ),
    *(
        ("databricks", "da" + "pi", HEX, 32),
        ("docker", "dckr" + "_pat_", LETTERS, 27),
        ("xai", "xa" + "i-", LETTERS, 80),
    ),
    *(
        ("groq", "gs" + "k_", LETTERS, 52),
        ("replicate", "r8" + "_", LETTERS, 37),
        ("nvidia", "nv" + "api-", LETTERS, 64),
    ),
    *(
        ("perplexity", "pp" + "lx-", LETTERS, 48),
        ("age", "AGE-SECRET" + "-KEY-1", LARGE, 58),
        ("mailgun", "ke" + "y-", SMALL, 32),
    ),
    *(
        ("sendinblue", "xkey" + "sib-", HEX, 64),
        ("grafana", "gl" + "sa_", LETTERS, 32),
        ("newrelic", "NR" + "AK-", LARGE, 27),
    ),
    *(
        ("sentry", "sntr" + "yu_", HEX, 64),
        ("postman", "PM" + "AK-", HEX, 24),
        ("planetscale", "psc" + "ale_tkn_", LETTERS, 43),
    ),
    *(
        ("doppler", "dp.p" + "t.", LETTERS, 43),
        ("notion", "nt" + "n_", LETTERS, 44),
        ("figma", "fig" + "d_", LETTERS, 40),
    ),
    *(("langsmith", "lsv2" + "_pt_", HEX, 32), ("pinecone", "pc" + "sk_", LETTERS, 60), ("twilio", "S" + "K", HEX, 32)),
    *(
        ("facebook", "EA" + "AG", LETTERS, 60),
        ("wandb", "wandb" + "_v1_", LETTERS, 60),
        ("heroku", "HR" + "KU-", LETTERS, 60),
    ),
)
"""Service, how its tokens begin, what they go on with, how long."""


def issued(rng: random.Random) -> Iterator[Sample]:
    for name, prefix, signs, length in ISSUED:
        body = _body(rng, signs, length)
        yield Sample(name, f"cannot use {prefix}{body}, sorry", body)
    sendgrid = _body(rng, LETTERS, 22), _body(rng, LETTERS, 43)
    yield Sample("sendgrid", "S" + f"G.{sendgrid[0]}.{sendgrid[1]}", sendgrid[1])
    telegram = _body(rng, LETTERS, 35)
    yield Sample("telegram", f"{rng.randrange(10**8, 10**9)}:{telegram}", telegram)
    discord = _body(rng, LETTERS, 23), _body(rng, LETTERS, 6), _body(rng, LETTERS, 27)
    yield Sample("discord", "M" + ".".join(discord), discord[2])
    mailchimp = _body(rng, HEX, 32)
    yield Sample("mailchimp", f"{mailchimp}-us12", mailchimp)


def forms(rng: random.Random) -> Iterator[Sample]:
    """Secrets that only what stands around them tells."""

    def made(name: str, say: Callable[[str], Any], length: int = 14) -> Sample:
        body = _body(rng, LETTERS, length)
        return Sample(name, say(body), body)

    yield made("postgresql", lambda it: f"postgresql://u:{it}@h")
    yield made("url with an at in the password", lambda it: f"mysql+pymysql://root:p@{it}@db.example:3306/runs")
    yield made("url with a slash in the password", lambda it: f"redis://default:a/{it}@cache:6379/0")
    yield made("url with a token as user", lambda it: f"pip install git+https://{it}@github.com/org/repo.git")
    yield made("sentry", lambda it: f"https://{it}@o1.ingest.sentry.io/42")
    yield made("login without a scheme", lambda it: f"mysqldump admin:{it}@tcp(db.example:3306)/runs")
    yield made("slack hook", lambda it: "https://hooks." + f"slack.com/services/T000/B000/{it}")
    yield made("discord hook", lambda it: "https://discord.com/api/web" + f"hooks/123456789/{it}")
    yield made("teams hook", lambda it: f"https://acme.webhook.office.com/webhookb2/{it}/IncomingWebhook/1/2")
    yield made("telegram hook", lambda it: f"https://api.telegram.org/bot12345678:{it}/sendMessage")
    yield made("mattermost hook", lambda it: f"https://chat.example/hooks/{it}")
    yield made("ifttt", lambda it: f"https://maker.ifttt.com/trigger/done/with/key/{it}")
    yield made("signed by amazon", lambda it: f"https://b.s3.amazonaws.com/x?X-Amz-Date=2026&X-Amz-Signature={it}")
    yield made("signed by google", lambda it: f"https://storage.googleapis.com/b/x?Expires=1&Signature={it}")
    yield made("signed by azure", lambda it: f"https://acc.blob.core.windows.net/c/x?sv=2024-01-01&sig={it}%3D")
    yield made("token in a query", lambda it: f"wss://gotify.example/stream?token={it}#top")
    yield made("token in a fragment", lambda it: f"https://app.example/#access_token={it}&expires_in=3600")
    yield made("url in a url", lambda it: f"https://proxy.example/?next=https%3A%2F%2Fu%3A{it}%40h%2F")
    yield made("bearer", lambda it: f"curl -H 'Authorization: Bearer {it}' https://api.example")
    yield made("header", lambda it: f"X-Api-Key: {it}")
    yield made("cookie header", lambda it: f"Cookie: theme=dark; session={it}; lang=en")
    yield made("basic", lambda it: "Basic " + base64.b64encode(f"user:{it}".encode()).decode())
    yield made("assignment", lambda it: f"WANDB_API_KEY={it} python train.py")
    yield made("assignment in quotes", lambda it: f'export DB_PASSWORD="two words {it}"')
    yield made("assignment that never ends", lambda it: f"password='{it}")
    yield made("hydra", lambda it: f"python train.py +logger.wandb.api_key={it} model=gpt2")
    yield made("option", lambda it: f"train.py --hub-token {it} --lr 3e-4")
    yield made("option with an equals sign", lambda it: f"train.py --hub_token={it}")
    yield made("option in quotes", lambda it: f"train.py --password 'a b {it}' --epochs 3")
    yield made("argv", lambda it: ["train.py", "--token", it, "--lr", "3e-4"])
    yield made("argv with a dash in the secret", lambda it: ["train.py", "--api-key", f"-{it}"])
    yield made("curl", lambda it: ["curl", "-u", f"user:{it}", "https://api.example"])
    yield made("json", lambda it: json.dumps({"lr": 0.1, "login": {"password": it}}))
    yield made("json of names", lambda it: json.dumps([{"name": "password", "value": it}]))
    yield made("json in json", lambda it: json.dumps({"body": json.dumps({"auth_token": it})}))
    yield made("escaped json", lambda it: json.dumps(json.dumps({"api_key": it})))
    yield made("json in words", lambda it: f"POST failed with {json.dumps({'client_secret': it})}")
    yield made("python", lambda it: f"Config(lr=0.1, api_key={it!r}, layers=2)")
    yield made("dict in words", lambda it: f"bad arguments { ({'password': it, 'lr': 1}) }")
    yield made("yaml", lambda it: f"model: gpt2\npassword: {it}\nlr: 0.1\n")
    yield made("toml", lambda it: f'[hub]\ntoken = "{it}"\n')
    yield made("xml", lambda it: f"<server><password>{it}</password></server>")
    yield made("words", lambda it: f"login failed: the password is '{it}'")
    yield made("words with a space in the name", lambda it: f"API key: {it}")
    yield made("wrong password", lambda it: f"wrong password {it} for bob")
    yield made("kubernetes", lambda it: [{"name": "LR", "value": "1"}, {"name": "DB_PASSWORD", "value": it}])
    yield made("pairs", lambda it: [("Accept", "json"), ("Authorization", it)])
    yield made("headers", lambda it: {"headers": {"Accept": "*/*", "X-Auth-Token": it}})
    yield made("deep", lambda it: {"a": [{"b": ({"c": {"wandb": {"key": it}}},)}]})
    yield made("namespace", lambda it: argparse.Namespace(lr=0.1, hub_token=it))
    yield made("simple namespace", lambda it: types.SimpleNamespace(db=types.SimpleNamespace(password=it)))
    yield made("dataclass", lambda it: Login("bob", it))
    yield made("object", lambda it: Box(lr=0.1, inner=Box(secret=it)))
    yield made("slots", Slots)
    yield made("named tuple", lambda it: Pair("bob", it))
    yield made("nested tokens", lambda it: {"tokens": {"hub": it}})
    yield made("list of tokens", lambda it: {"api_tokens": [it]})
    yield made("bytes", lambda it: f"password={it}".encode())
    jwt = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "HS256"}, {"sub": "1"})
    ]
    yield made("jwt", lambda it: f"got {jwt[0]}.{jwt[1]}.{it}", 43)
    yield made(
        "pem",
        lambda it: f"-----BEGIN OPENSSH PRIVATE{' '}KEY-----\n{it}\n{it[::-1]}\n-----END OPENSSH PRIVATE{' '}KEY-----",
        60,
    )
    yield made("torn pem", lambda it: f"-----BEGIN RSA PRIVATE{' '}KEY-----\\n{it}", 60)


def keyed(rng: random.Random) -> Iterator[Sample]:
    """Secrets that only their key tells; half of them words, as people choose them."""
    for number, key in enumerate(KEYS.split()):
        body = _body(rng, LETTERS, 14) if number % 2 else "correct horse " + _body(rng, string.ascii_lowercase, 12)
        yield Sample(f"key {key}", {key: body}, body)


def secrets() -> list[Sample]:
    rng = random.Random(20)
    return [*keyed(rng), *issued(rng), *forms(rng)]
