"""Words in keys, by their meaning for the value."""

from __future__ import annotations

from enum import Enum


class Kind(Enum):
    """The meaning of a key for its value.

    PLAIN: none. SECRET: the value is a secret. TEXT: it is a secret if it is text. COUNT: it is a count, unless it is
    text that is not a number.
    """

    PLAIN = 0
    SECRET = 1
    TEXT = 2
    COUNT = 3


def words(text: str) -> frozenset[str]:
    """Converts a list of words to a set."""
    return frozenset(text.split())


WITHIN = (
    *("pwd", "password", "passwd", "passphrase", "passcode", "passwort", "kennwort", "wachtwoord"),
    *("secretaccesskey", "secretkey", "accesskey"),
    *("contraseña", "contrasena", "пароль"),
)
SECRETS = words(
    """
    secret secrets pwd pswd psw psswd passw passwrd pword dbpwd userpwd mypwd dbpass userpass mypass
    authorization authorisation bearer jwt cookie cookies setcookie dsn sessionid sessid phpsessid jsessionid
    csrf xsrf csrftoken otp totp hotp mnemonic cvv cvc passkey psk senha 密码 密钥 パスワード sshpass pgpassword rootpw
    creds authkey hmackey webhook webhooks idrsa pgpass htpasswd keytab netrc connstr apikey clkey cloukey
    """
)
TEXTS = words("cred oauth keystore kubeconfig pem pfx pkcs webhookurl signedurl presignedurl")
LAST = {"auth": Kind.TEXT, "pat": Kind.TEXT, "private": Kind.TEXT, "salt": Kind.TEXT, "pats": Kind.TEXT}
PAIRS = {
    ("session", "id"): Kind.TEXT,
    ("gitlab", "session"): Kind.TEXT,
    ("contribsys", "com"): Kind.TEXT,
    ("connection", "string"): Kind.SECRET,
    ("conn", "str"): Kind.SECRET,
    ("conn", "string"): Kind.SECRET,
    ("id", "rsa"): Kind.SECRET,
    ("recovery", "code"): Kind.SECRET,
    ("recovery", "codes"): Kind.SECRET,
    ("backup", "codes"): Kind.SECRET,
    ("security", "code"): Kind.SECRET,
    ("security", "answer"): Kind.SECRET,
    ("auth", "code"): Kind.SECRET,
    ("auth", "header"): Kind.SECRET,
    ("auth", "value"): Kind.SECRET,
    ("auth", "data"): Kind.SECRET,
    ("seed", "words"): Kind.SECRET,
    ("card", "number"): Kind.SECRET,
    ("one", "password"): Kind.SECRET,
    ("mot", "passe"): Kind.SECRET,
    ("web", "hook"): Kind.SECRET,
    ("service", "principal"): Kind.TEXT,
    ("access", "code"): Kind.SECRET,
    ("account", "json"): Kind.SECRET,
    ("private", "pem"): Kind.SECRET,
}
USERS = words(
    """
    db database user username smtp imap ftp sftp mail email mysql pg postgres postgresql redis mongo root admin
    login sudo http https proxy basic auth my ldap sql ssh wifi vault master app service key cert keystore
    rabbitmq broker account client server card sim device security door kafka es elastic registry docker git
    github gitlab api ibm iam cloud cloudant clou softlayer cl sl
    """
)
OWNER_ENDINGS = ("api", "iam", "cloud")
"""Endings of service names that are written as one word with `key`, `pass` or `pw`."""

ADDRESSES = words("url urls uri uris address endpoint conn connection link")
SERVICES = words(
    """
    database databases db redis mongo mongodb postgres postgresql pg mysql mariadb sqlalchemy broker amqp
    rabbitmq celery jdbc odbc sentry clickhouse snowflake supabase cassandra slack discord mattermost teams
    signed presigned sas hook hooks webhook kafka neo memcached
    """
)

QUANTITIES = words(
    """
    num n nr no max maximum min minimum count counts total len length lengths size sizes limit limits rate rates
    ratio ratios per dim dims interval timeout ttl age expires expiry expiration seconds minutes hours days
    retries rotation bits version dropout weight prob probability
    """
)

STILL_KEY = words(
    """
    id ids value values string str file path b base json pem data secret hex raw text content contents env prod
    production dev test testing staging live sandbox old new backup primary secondary read write rw ro main
    default pass phrase access password
    """
)
"""Words after `key` with which the name still means a key itself."""

KEY_CERTAIN = words("api secret private ssh gpg pgp encryption signing wandb openai hf huggingface anthropic")

KEY_OWNERS = KEY_CERTAIN | words(
    """
    access auth authorization authentication encrypt decryption decrypt signature service account storage master
    client app application subscription consumer license licence aws gcp gcs azure google cohere mistral comet
    neptune mlflow clearml sendgrid mailgun mailchimp stripe twilio datadog dd newrelic sentry github gitlab
    bitbucket kaggle ngc nvidia replicate together groq pinecone deploy deployment ssl tls rsa dsa ecdsa ed aes
    des hmac jwt jwk session user admin root db database redis vault server registration bot webhook ingest
    ingestion instrumentation integration crypto cipher shared psk wallet dashscope deepseek gemini perplexity
    fireworks runpod lambda modal algolia mapbox pagerduty opsgenie slack discord telegram heroku cloudflare
    digitalocean do s minio wasabi backblaze b installation host my personal developer dev prod production
    tracking logging monitoring telemetry ammeter firebase supabase elastic elasticsearch kibana grafana
    rapidapi serpapi serp tavily weights xai nvapi key rest voyage jina publishable sandbox live team org
    organization workspace notion linear asana jira airtable shopify paypal braintree ibm iam cos cloudant softlayer
    """
)

PLAIN_KEYS = words(
    """
    norm sort sorting primary foreign public metric metrics monitor monitored image images img text label labels
    input inputs output outputs target targets batch cache data dataset feature features column row dict state
    group groupby index random rng prng seed query attn attention partition map mapping lookup config
    configuration best caption captions prompt prompts audio video answer question source src tgt loss model
    module param parameter layer record field sample samples hot arrow major minor musical order ordering
    compare comparison score reward action obs observation time timestamp step epoch name id unique composite
    natural surrogate candidate super message log category class type kind bucket shard hash hashing join merge
    split top tag tags result reduce filter object entity node edge graph item user_id doc document page token
    tokens word position positional value relative rotary rope kv num n per by first last next prev max min low
    high mel midi piano enum option setting settings flag env environ keyboard shortcut press down up left right
    dedup dedupe idempotency correlation trace sequence seq chunk any every extra missing unexpected
    invalid unknown duplicate expected no wrong bad empty default
    """
)

STILL_TOKEN = words(
    """
    value values string str file path secret env prod production dev test testing staging read write rw ro admin
    key hex raw b old new backup primary secondary live sandbox main default auth header
    """
)
"""Words after `token` with which the name still means a token for access."""

TOKEN_OWNERS = words(
    """
    access auth authentication api refresh bearer hf hub huggingface github gitlab gh gl git bitbucket wandb
    secret session security bot slack discord telegram oauth csrf xsrf admin client service account personal
    private deploy ci npm pypi jwt vault aws sas azure gcp google app application login device push webhook
    ammeter comet neptune clearml kaggle openai anthropic datadog sentry influx influxdb consul nomad kube
    kubernetes k registry docker dashboard root upload download sts identity id csrftoken x notion figma twilio
    heroku cloudflare databricks azureml dagshub mlflow hook write read ingest user users my
    """
)

PLAIN_TOKENS = words(
    """
    on pad padding eos bos cls class mask masked unk unknown sep special image images img video audio speech text
    word words per each start end begin stop prefix suffix think thinking reasoning prompt vocab sub separator
    decoder encoder forced blank sos go max maximum min minimum num number n nr by single multi target source
    query patch register dist distill distillation placeholder filler control tool fim sentinel newline space
    role language lang task latent learnable visual vision spatial temporal local extra added additional
    boundary delimiter eot eod eom im object action state time chunk bit byte char character out output input
    generated draft bonus soft hard dummy noise empty next last first prev previous expected unexpected total
    train training eval valid validation cached seen count context sequence seq mean average avg sample samples
    packed ignored drop dropped keep kept invalid this that the a an every all any bad suppress forbidden banned
    allowed global frame phoneme subword cell gist memory summary router expert return reward bert gpt mtp
    lookahead speculative
    """
)
"""Words before `token` with which the name means a piece of text, or a count of such pieces."""
