--
-- PostgreSQL database dump
--



SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: alembic_version; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);


--
-- Name: audit; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.audit (
    at bigint NOT NULL,
    id text NOT NULL,
    who text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    detail text NOT NULL
);


--
-- Name: chunks; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.chunks (
    run text NOT NULL,
    stream text NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    last_step bigint NOT NULL,
    first_time bigint NOT NULL,
    last_time bigint NOT NULL,
    rows integer NOT NULL,
    columns integer NOT NULL,
    schema text,
    received bigint NOT NULL,
    data bytea NOT NULL
)
PARTITION BY RANGE (day);
ALTER TABLE ONLY public.chunks ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: chunks_20261121; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.chunks_20261121 (
    run text NOT NULL,
    stream text NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    last_step bigint NOT NULL,
    first_time bigint NOT NULL,
    last_time bigint NOT NULL,
    rows integer NOT NULL,
    columns integer NOT NULL,
    schema text,
    received bigint NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY public.chunks_20261121 ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: chunks_20261122; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.chunks_20261122 (
    run text NOT NULL,
    stream text NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    last_step bigint NOT NULL,
    first_time bigint NOT NULL,
    last_time bigint NOT NULL,
    rows integer NOT NULL,
    columns integer NOT NULL,
    schema text,
    received bigint NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY public.chunks_20261122 ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: chunks_20261123; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.chunks_20261123 (
    run text NOT NULL,
    stream text NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    last_step bigint NOT NULL,
    first_time bigint NOT NULL,
    last_time bigint NOT NULL,
    rows integer NOT NULL,
    columns integer NOT NULL,
    schema text,
    received bigint NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY public.chunks_20261123 ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: chunks_20261124; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.chunks_20261124 (
    run text NOT NULL,
    stream text NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    last_step bigint NOT NULL,
    first_time bigint NOT NULL,
    last_time bigint NOT NULL,
    rows integer NOT NULL,
    columns integer NOT NULL,
    schema text,
    received bigint NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY public.chunks_20261124 ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: chunks_20261125; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.chunks_20261125 (
    run text NOT NULL,
    stream text NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    last_step bigint NOT NULL,
    first_time bigint NOT NULL,
    last_time bigint NOT NULL,
    rows integer NOT NULL,
    columns integer NOT NULL,
    schema text,
    received bigint NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY public.chunks_20261125 ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: chunks_rest; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.chunks_rest (
    run text NOT NULL,
    stream text NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    last_step bigint NOT NULL,
    first_time bigint NOT NULL,
    last_time bigint NOT NULL,
    rows integer NOT NULL,
    columns integer NOT NULL,
    schema text,
    received bigint NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY public.chunks_rest ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: columns; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.columns (
    run text NOT NULL,
    stream text NOT NULL,
    part bigint NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    head bytea NOT NULL,
    data bytea NOT NULL
)
PARTITION BY RANGE (day);
ALTER TABLE ONLY public.columns ALTER COLUMN head SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.columns ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: columns_20261121; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.columns_20261121 (
    run text NOT NULL,
    stream text NOT NULL,
    part bigint NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    head bytea NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY public.columns_20261121 ALTER COLUMN head SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.columns_20261121 ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: columns_20261122; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.columns_20261122 (
    run text NOT NULL,
    stream text NOT NULL,
    part bigint NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    head bytea NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY public.columns_20261122 ALTER COLUMN head SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.columns_20261122 ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: columns_20261123; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.columns_20261123 (
    run text NOT NULL,
    stream text NOT NULL,
    part bigint NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    head bytea NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY public.columns_20261123 ALTER COLUMN head SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.columns_20261123 ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: columns_20261124; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.columns_20261124 (
    run text NOT NULL,
    stream text NOT NULL,
    part bigint NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    head bytea NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY public.columns_20261124 ALTER COLUMN head SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.columns_20261124 ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: columns_20261125; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.columns_20261125 (
    run text NOT NULL,
    stream text NOT NULL,
    part bigint NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    head bytea NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY public.columns_20261125 ALTER COLUMN head SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.columns_20261125 ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: columns_rest; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.columns_rest (
    run text NOT NULL,
    stream text NOT NULL,
    part bigint NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    head bytea NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE ONLY public.columns_rest ALTER COLUMN head SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.columns_rest ALTER COLUMN data SET STORAGE EXTERNAL;


--
-- Name: deleted; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.deleted (
    run text NOT NULL,
    at bigint NOT NULL,
    project text DEFAULT ''::text NOT NULL
);


--
-- Name: events; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.events (
    run text NOT NULL,
    stream text NOT NULL,
    number bigint NOT NULL,
    day bigint NOT NULL,
    name text NOT NULL,
    step bigint NOT NULL,
    "time" bigint NOT NULL,
    data text NOT NULL
)
PARTITION BY RANGE (day);


--
-- Name: events_20261121; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.events_20261121 (
    run text NOT NULL,
    stream text NOT NULL,
    number bigint NOT NULL,
    day bigint NOT NULL,
    name text NOT NULL,
    step bigint NOT NULL,
    "time" bigint NOT NULL,
    data text NOT NULL
);


--
-- Name: events_20261122; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.events_20261122 (
    run text NOT NULL,
    stream text NOT NULL,
    number bigint NOT NULL,
    day bigint NOT NULL,
    name text NOT NULL,
    step bigint NOT NULL,
    "time" bigint NOT NULL,
    data text NOT NULL
);


--
-- Name: events_20261123; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.events_20261123 (
    run text NOT NULL,
    stream text NOT NULL,
    number bigint NOT NULL,
    day bigint NOT NULL,
    name text NOT NULL,
    step bigint NOT NULL,
    "time" bigint NOT NULL,
    data text NOT NULL
);


--
-- Name: events_20261124; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.events_20261124 (
    run text NOT NULL,
    stream text NOT NULL,
    number bigint NOT NULL,
    day bigint NOT NULL,
    name text NOT NULL,
    step bigint NOT NULL,
    "time" bigint NOT NULL,
    data text NOT NULL
);


--
-- Name: events_20261125; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.events_20261125 (
    run text NOT NULL,
    stream text NOT NULL,
    number bigint NOT NULL,
    day bigint NOT NULL,
    name text NOT NULL,
    step bigint NOT NULL,
    "time" bigint NOT NULL,
    data text NOT NULL
);


--
-- Name: events_rest; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.events_rest (
    run text NOT NULL,
    stream text NOT NULL,
    number bigint NOT NULL,
    day bigint NOT NULL,
    name text NOT NULL,
    step bigint NOT NULL,
    "time" bigint NOT NULL,
    data text NOT NULL
);


--
-- Name: findings; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.findings (
    run text NOT NULL,
    stream text NOT NULL,
    verdict text NOT NULL,
    body text NOT NULL,
    active boolean NOT NULL,
    found bigint NOT NULL
);


--
-- Name: incidents; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.incidents (
    run text NOT NULL,
    id text NOT NULL,
    verdict text NOT NULL,
    number integer NOT NULL,
    severity text NOT NULL,
    title text NOT NULL,
    state text NOT NULL,
    times integer NOT NULL,
    opened bigint NOT NULL,
    acknowledged bigint,
    closed bigint,
    closed_reason text,
    first_step bigint NOT NULL,
    opened_step bigint NOT NULL,
    last_step bigint NOT NULL,
    stream text NOT NULL,
    rank integer NOT NULL,
    tensor text,
    module text,
    caller text,
    cause text NOT NULL,
    fix text NOT NULL,
    evidence text NOT NULL,
    consequences text NOT NULL,
    silenced bigint
);


--
-- Name: keeping; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.keeping (
    run text NOT NULL,
    stream text NOT NULL,
    claimed_by text,
    claimed_until bigint NOT NULL,
    rows bigint NOT NULL,
    finished boolean NOT NULL
);


--
-- Name: outbox; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.outbox (
    run text NOT NULL,
    id text NOT NULL,
    incident text NOT NULL,
    kind text NOT NULL,
    channel text NOT NULL,
    message text NOT NULL,
    state text NOT NULL,
    attempts integer NOT NULL,
    error text,
    created bigint NOT NULL,
    due bigint NOT NULL,
    claimed_until bigint NOT NULL,
    sent bigint
);


--
-- Name: projects; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.projects (
    name text NOT NULL,
    created bigint NOT NULL
);


--
-- Name: runs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.runs (
    id text NOT NULL,
    name text NOT NULL,
    project text NOT NULL,
    state text NOT NULL,
    config text NOT NULL,
    tags text NOT NULL,
    environment text NOT NULL,
    world_size integer NOT NULL,
    started bigint NOT NULL,
    ended bigint,
    judged_version bigint NOT NULL,
    judged_at bigint NOT NULL,
    claimed_by text,
    claimed_until bigint NOT NULL,
    folded text NOT NULL,
    whole text DEFAULT '{}'::text NOT NULL,
    states bytea DEFAULT '\x'::bytea NOT NULL,
    external_id text DEFAULT ''::text NOT NULL
);


--
-- Name: schemas; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.schemas (
    run text NOT NULL,
    stream text NOT NULL,
    id text NOT NULL,
    body bytea NOT NULL
);


--
-- Name: segments; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.segments (
    run text NOT NULL,
    stream text NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    last_step bigint NOT NULL,
    rows integer NOT NULL,
    parts integer NOT NULL,
    schema text,
    steps bytea NOT NULL,
    times bytea NOT NULL
)
PARTITION BY RANGE (day);
ALTER TABLE ONLY public.segments ALTER COLUMN steps SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.segments ALTER COLUMN times SET STORAGE EXTERNAL;


--
-- Name: segments_20261121; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.segments_20261121 (
    run text NOT NULL,
    stream text NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    last_step bigint NOT NULL,
    rows integer NOT NULL,
    parts integer NOT NULL,
    schema text,
    steps bytea NOT NULL,
    times bytea NOT NULL
);
ALTER TABLE ONLY public.segments_20261121 ALTER COLUMN steps SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.segments_20261121 ALTER COLUMN times SET STORAGE EXTERNAL;


--
-- Name: segments_20261122; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.segments_20261122 (
    run text NOT NULL,
    stream text NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    last_step bigint NOT NULL,
    rows integer NOT NULL,
    parts integer NOT NULL,
    schema text,
    steps bytea NOT NULL,
    times bytea NOT NULL
);
ALTER TABLE ONLY public.segments_20261122 ALTER COLUMN steps SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.segments_20261122 ALTER COLUMN times SET STORAGE EXTERNAL;


--
-- Name: segments_20261123; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.segments_20261123 (
    run text NOT NULL,
    stream text NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    last_step bigint NOT NULL,
    rows integer NOT NULL,
    parts integer NOT NULL,
    schema text,
    steps bytea NOT NULL,
    times bytea NOT NULL
);
ALTER TABLE ONLY public.segments_20261123 ALTER COLUMN steps SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.segments_20261123 ALTER COLUMN times SET STORAGE EXTERNAL;


--
-- Name: segments_20261124; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.segments_20261124 (
    run text NOT NULL,
    stream text NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    last_step bigint NOT NULL,
    rows integer NOT NULL,
    parts integer NOT NULL,
    schema text,
    steps bytea NOT NULL,
    times bytea NOT NULL
);
ALTER TABLE ONLY public.segments_20261124 ALTER COLUMN steps SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.segments_20261124 ALTER COLUMN times SET STORAGE EXTERNAL;


--
-- Name: segments_20261125; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.segments_20261125 (
    run text NOT NULL,
    stream text NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    last_step bigint NOT NULL,
    rows integer NOT NULL,
    parts integer NOT NULL,
    schema text,
    steps bytea NOT NULL,
    times bytea NOT NULL
);
ALTER TABLE ONLY public.segments_20261125 ALTER COLUMN steps SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.segments_20261125 ALTER COLUMN times SET STORAGE EXTERNAL;


--
-- Name: segments_rest; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.segments_rest (
    run text NOT NULL,
    stream text NOT NULL,
    first_step bigint NOT NULL,
    day bigint NOT NULL,
    last_step bigint NOT NULL,
    rows integer NOT NULL,
    parts integer NOT NULL,
    schema text,
    steps bytea NOT NULL,
    times bytea NOT NULL
);
ALTER TABLE ONLY public.segments_rest ALTER COLUMN steps SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.segments_rest ALTER COLUMN times SET STORAGE EXTERNAL;


--
-- Name: streams; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.streams (
    run text NOT NULL,
    id text NOT NULL,
    role text NOT NULL,
    rank integer NOT NULL,
    world_size integer NOT NULL,
    host text NOT NULL,
    pid bigint NOT NULL,
    started bigint NOT NULL,
    acknowledged bigint NOT NULL,
    schema text,
    rows bigint NOT NULL,
    events bigint NOT NULL,
    last_step bigint,
    last_step_time bigint,
    "precision" text,
    latest text NOT NULL,
    counters text NOT NULL,
    lost text NOT NULL,
    faults text NOT NULL,
    states bytea NOT NULL,
    alive boolean NOT NULL,
    backlog bigint NOT NULL,
    heard bigint NOT NULL,
    bye text NOT NULL,
    bye_reason text,
    version bigint NOT NULL,
    opened bigint DEFAULT '0'::bigint NOT NULL
);


--
-- Name: tokens; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.tokens (
    sha256 text NOT NULL,
    name text NOT NULL,
    scopes text NOT NULL,
    project text,
    created bigint NOT NULL,
    expires bigint
);


--
-- Name: totals; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.totals (
    project text NOT NULL,
    name text NOT NULL,
    outcome text NOT NULL,
    verdict text NOT NULL,
    severity text NOT NULL,
    value bigint NOT NULL
);


--
-- Name: chunks_20261121; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.chunks ATTACH PARTITION public.chunks_20261121 FOR VALUES FROM ('20778') TO ('20779');


--
-- Name: chunks_20261122; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.chunks ATTACH PARTITION public.chunks_20261122 FOR VALUES FROM ('20779') TO ('20780');


--
-- Name: chunks_20261123; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.chunks ATTACH PARTITION public.chunks_20261123 FOR VALUES FROM ('20780') TO ('20781');


--
-- Name: chunks_20261124; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.chunks ATTACH PARTITION public.chunks_20261124 FOR VALUES FROM ('20781') TO ('20782');


--
-- Name: chunks_20261125; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.chunks ATTACH PARTITION public.chunks_20261125 FOR VALUES FROM ('20782') TO ('20783');


--
-- Name: chunks_rest; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.chunks ATTACH PARTITION public.chunks_rest DEFAULT;


--
-- Name: columns_20261121; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.columns ATTACH PARTITION public.columns_20261121 FOR VALUES FROM ('20778') TO ('20779');


--
-- Name: columns_20261122; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.columns ATTACH PARTITION public.columns_20261122 FOR VALUES FROM ('20779') TO ('20780');


--
-- Name: columns_20261123; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.columns ATTACH PARTITION public.columns_20261123 FOR VALUES FROM ('20780') TO ('20781');


--
-- Name: columns_20261124; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.columns ATTACH PARTITION public.columns_20261124 FOR VALUES FROM ('20781') TO ('20782');


--
-- Name: columns_20261125; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.columns ATTACH PARTITION public.columns_20261125 FOR VALUES FROM ('20782') TO ('20783');


--
-- Name: columns_rest; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.columns ATTACH PARTITION public.columns_rest DEFAULT;


--
-- Name: events_20261121; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events ATTACH PARTITION public.events_20261121 FOR VALUES FROM ('20778') TO ('20779');


--
-- Name: events_20261122; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events ATTACH PARTITION public.events_20261122 FOR VALUES FROM ('20779') TO ('20780');


--
-- Name: events_20261123; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events ATTACH PARTITION public.events_20261123 FOR VALUES FROM ('20780') TO ('20781');


--
-- Name: events_20261124; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events ATTACH PARTITION public.events_20261124 FOR VALUES FROM ('20781') TO ('20782');


--
-- Name: events_20261125; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events ATTACH PARTITION public.events_20261125 FOR VALUES FROM ('20782') TO ('20783');


--
-- Name: events_rest; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events ATTACH PARTITION public.events_rest DEFAULT;


--
-- Name: segments_20261121; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.segments ATTACH PARTITION public.segments_20261121 FOR VALUES FROM ('20778') TO ('20779');


--
-- Name: segments_20261122; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.segments ATTACH PARTITION public.segments_20261122 FOR VALUES FROM ('20779') TO ('20780');


--
-- Name: segments_20261123; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.segments ATTACH PARTITION public.segments_20261123 FOR VALUES FROM ('20780') TO ('20781');


--
-- Name: segments_20261124; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.segments ATTACH PARTITION public.segments_20261124 FOR VALUES FROM ('20781') TO ('20782');


--
-- Name: segments_20261125; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.segments ATTACH PARTITION public.segments_20261125 FOR VALUES FROM ('20782') TO ('20783');


--
-- Name: segments_rest; Type: TABLE ATTACH; Schema: public; Owner: -
--

ALTER TABLE ONLY public.segments ATTACH PARTITION public.segments_rest DEFAULT;


--
-- Data for Name: alembic_version; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.alembic_version (version_num) FROM stdin;
0008
\.


--
-- Data for Name: audit; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.audit (at, id, who, action, subject, detail) FROM stdin;
\.


--
-- Data for Name: chunks_20261121; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.chunks_20261121 (run, stream, first_step, day, last_step, first_time, last_time, rows, columns, schema, received, data) FROM stdin;
\.


--
-- Data for Name: chunks_20261122; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.chunks_20261122 (run, stream, first_step, day, last_step, first_time, last_time, rows, columns, schema, received, data) FROM stdin;
06895145-bce5-4da2-86c5-32649224320c	1008d51ad6474029831b97ee67af0514	0	20779	299	1795368188643508957	1795368192128716112	300	102	5f2e2abfcc7191b4	1795368275607780836	\\x28b52ffda0e0f0010045b6003c1c01000100dddc1c9f95e9f03493ef78427c991ffef2f9af235601c26d5ac684360646fd21457375af66adcf1fb17b8035423399c1468b50ff76c187cf04cd577ec4256ef95c925b27d6fdac8a85c22c27e08bb4ace936f1bc4ddbc184d1caebc58f60c31218530ddfd44d24a21d2cf2a1263253b6c0fac56186ae6eae6dd17b9f4aa7ce4d7e4b46511ef0fe5f64438bec5aaadf450ea308b1f3011e5e05ae2840de994c43eee04aeb76827046f1c35f39d3b7c3e5a53f21a7645a587b7b3621fc0730fb034476f4485d806fb2d6d6b1aa31f4279eff19515a8180083479860cbe23568af137960cec5d99248f235777bea31e8759f9c1bdbc6ecd389386ce4f85988ef6ebd449ea7c5db55246eb78a59990ac9be36b5da87edea789630c0ce568740dcf90485d02c68ba05b04adb5f02802b231f75af900e07c3c7f6dc7eed09b0a9647480d29a90719ee942a18975202dfe5118e74bde6f3c8079e1bfd08ce202b03957f06e1d26839097e2a82124c33332c24d553c084b14e1f458d7b09e4cadb0513359650fd9a7555aba64fa9bed1fe0430c67b3e3585fff3bf31d93fb96225c3506ae241b0bc18cc4c382c26e72aa204bdd5703e24f754e789065f4caa537a3979e36548f52c52345fd337086f5221100da2d9310a13848a351b292e6cef5a763ac67f0489a093c95b084ee50a8feb94b31cfedfad116ec6493be6e267ddc4cda0825cb4ab54baa50da9aef42dfe0dc36daade06530eadf16d65f0b2ec5105200ee77ac863a51d696baf459880d4ae5cabcede38afdcf019dcc4e9e32f1d7156201716ac0479ba6c4bd3cabca8fb0d5c8cc2ec9ddb02d47dcbb822477ba8e6a4b3cbd57c5ccfb6d139ecacbe1daee19ed404b7d697d1d182b100edcab9a42f986825b878c55b78369496caaae08a81540a584687f0b8cecf89aa38402e99da616c62d2817bc1aa563efacc7b9b7eda928f890b5fd6e289c4f78e7b9537272276d4713fc8233a3b9c51597abc76b0839304299cbb805ae8f4f8077c5e1c261a5a137d43aa6d177577be2da5863b33f4392929d654dbebfd5560c66b3dab2eb5bbb5bda7af8deb58353b9e4fa29cae7d9d78b97937353abb39290bb65f9430579ea0cb367f5db91037fb34999b7a7a7fd093ba777b383d7c787a795e995b583d3a7c7b3b7b7b78b87a7b38b40b32f9763c7c38bc3a3d773cbc7631453d7e7b36bb3954637a7b387d78793c7c3abd98b35a3c0832824ea536bf357ef8797978d6596127235a9540f50203010001010202010200010001010001000101000101010001010000010300000001000000da6dea18a126bb76adadc5483b8428af7726de5aa046ae063d2f87110a185c449a72fc93da73b9de573eed09847c95bea23db4afb03c0bfc7dc32c490a590be03af2b10e7d349cdc58f966db6c5b41e59be2df68042f5b43bcacab03107b8a790fb891d54086fa4a640c7ec8a9562a966d3bcde8c31a96deaef3a2f484784fa3a26f064ce6758e1aacfc23e60c5f07931fa3fdc0bf02d0b89995344d0bd66508061e0ffe3be71a021e74727e8a3941cee6fb98fb2ffe9b833dbf0a674f14f66f9ea78f8e3ff6dac7350d41beaf81ac66ef779df88c9dedee56bdf9602e52c35c39bf8c909aec11d177b05fa469a77040df515d49fb19116200c3b0a7f0868e7acd09ca6fb0528736bf871179bbb1a7bd29f6703230117c13344e0eb2370ca8e1c8b8687f786c9ed2c29e6fc9054bf9cba3a30609a3a3e0a3a368a3a34aa3a3f4a3a393a3a3fea3a383a3a3bea3a35ca3a349a3a336a3a3b2a3a3cbfc15747b62ea10772f0e000000a3900f64e8da4430294ac8b44757794ae7c885eb0f4885e8606d7b7b71183499e3ecb2f31150b0cd5ce72c875ed02a7913df7a4bc3dfe3428d1b2e5e2c15b7799616ae3167c18a55ac5a41ce417eff8c38947d50c546022f74087879b3efac26d0198419c7fa2dbf78afc9d4eac7343fa37adf45be5362f8e9af839efedb4f2824447f93afab925a0f40d3d45aa187e854870300d76bbf30f19e20230cb59127bc3564c066541c9e5ba1179e54c1a94b5e305e0f868cd2ba95559043f38423fb1a9f27a0ffb1b037aafe8b5ffae58f71d84c3e12d26a84b4b2b6b0a0d7b400f86d54f590e403229d671f8598eb5bf4097038e2b6569165c9bf1a8cefcdda218c974935b2390f28863174e60886cf5888a49afdb7b3cb17c8a624f0da289925bbfee38f7cdcc4609ceafac9d83e664b1761326d9759a142b06e1c17535dc5db60605c7e52787762d5f286ce58bdc50aae026c009daa1f98ee2e222043fae97a7df556ad954a7a3296be7839d69aec0e2547ec922312a0a57530aaf2db76303a14a6f508c450da427a45661268c0dbdfcc8c668fce405472e5561cfa066242047e9dc62380565c8b23f8f0b6f66b5479fdea901ba13329158b4fbc25a3cc0b5702b55220f59d919dcaca78509a77141085e61221a08bdd7327be91c21449d440670abdbe31a4a21870175c26e2809c6e10e0d734d58a463aa0550271de8d5a0f930eba3b4cb1cacb2220c284262482ac6962bb8ccff060f0154ae67e5caf3cc61aa55c0f4cdcaa56780d8adcc872045c825e5412f47e8a0febeb8275fc2f5ca6e81b7440e4e3510a0ca94863442440983cb853f4051cdccd9ba30000a35536a3a3a39fa30779b6a3a3a3f7a3a3a341b433aa20b6828eba40a34092a3a3a3a3e2a3963ba3a3a343a32c71730080808000003718a3541c76a2c2383598bb5ec0c6621e5fea8bae930a187e22d5bbb584db4dd67e2837b960ff21d1756181fc40836ca66f26d02c1000d6f5ece456a600f6dea3425ba3473ba39cfaa30361a369d0a3bff8f49e00d8a34405f56f75a35e747993a11a7b029198d64d9bc04af7f778f4d3aa5cf7666a3723730a1814c8bfb56b0a77b829adc9cd3f392bf53e0c4dca4c63794d36f814c1b6b4e26126f9fa5b81e8e0ab22740af00eaa4874a9f783f7dbf7173cc16eb2f6e8037e7ed454d1fe0dd698260300cb0a377808b3f66541847f4df5468ce87a00033618103708e524c79dc5861393b827d69ffb6ed9767173cbf3197afbb7637690efa8a284826a598f6dbe01ce2a974f74759b133da91ba6a1cede9ee612e23c0ca87bb2b832896e9f8559a52cb693ceb2ab4f257fe170e051e876985167ff22a83f1513d7052094b40f41f8df895167e970ccd1da01c982b821b1fd8db63367316c35e0630626abb0cb1f28c95a6be7614560d144657efd0a68017a430a036000381721068ea5f3e4ca1d3c7e88f980bfcb5e1ec2e7166a2bfa17cb1871bee24f20b16b17a316c5d201f71c9bee544ea300a3a30000a3ae3a2753008b2cbd2344b89169793cb8c46821a6d3589999c8c197833866716adbb6c9c80147cf69e130a4e972c632168b25b6b5483edc24fd1dbfbd576cc19ed02d2d6dec0af1d0a55cb00ec30fa4f7178384b41a9cc097bb805d6f290459227107d7f3ecdbb86ec4a1f0855280f427af6f6c3e1df4d93ca753bf0a13a1494ae6de4919e3b741aa843d560c19bac4b31f6f4c3505348b1fd46c37f29b17f21039aa7d42ff6404df7c9f70546a57a86971bfaac0996c508a9915421da847a46d41ab44f696860bc93255e18207f80e1b4aab8bc01888118ec3bc6bdfdf30fdf91a5569e8387e212715874693be0fe24c2dfe2a61888f4bfce2e5826e807c06a4c503efae07c13c9f1afed132cd1f199e8e124f4bb8e395de0a230d53df77582b4d82aac5722589ac53d7fb4e5c0713cc8b20da65d0b224cc06e81fbad87a3a7ecb23915f16439265b8c56a23e0c18a4a1ab7568716a4ee6b4bca5ee37b38ad8e20360edeb0f337dfa77a8203a834de26cc93922c577345b064c7000ff0b84af952155891ec55a313e48de9c6cbcffaef04681de203a8927072af459d6798de42e5d1d9fcd2f01b1f9aee6d36ae65eb77f74aacb7d1a7aba50f4a5a71880128289e849d8e0121a2017282ca6c8b63cf031415a654609bdfd44b45766868eec1cc3e1f961f51530c4bdd6fe70472a9af622297078e70f667a9182a8ed742a8cda1f6390840550a179aecccb05f689cc4b4d35d7e3b656d8801c40a33506685b9107e07dd45ec064b457625fe77a3d472ee4c8a5666f6465e326e9c267ef985fb1ed5ad89388cf53ae68abcf404d29fc5953ae233c4296194a30000a3ff50a3a3a318a3bbdea3a3a32ea3a3a3a78db3ca3e841308206de26163a3a3a38aa36f246f45c7cbcbf846a3475b7097a36d5a1f550ff09530244c82b6c30467f8505fa394bc0c6e1d9aa5a28436be9157ebb132b7561387f7eca5582fef99c69151e821fd4eec0000e605638adee1aca58ff8243137a435919574a39ccfcf98bcb27f0d1b0080008000800080004080a0c0e0001020304050607080889098a0a8b0b8c0c8d0d8e0e8f0f80004080c1014181c2024282c3034383c404480007d5f00e6803c8593f2dd6aada6cdb066b37644c07880855759893fcba78326073d4c7798658a82c3018b6833dad9a1b2925f71be719a24a2a9ce3267ab8231564fe978ad0ebc4cc3ec57308d061e3b5283d7482733cb2038b50349db295324021f7b962d8ff0735813338b3d384ff2c5638a7ac555b38d879e66e7cd020a8cd73919e4ed43ad83bddeab4b21f9f94b6e7d08f41d6718bfa70c03be4a0481a47188ad20f6eab137008629dddbba03980c6ef88667bdf430780aa70d30bab2bf8e4c008412c88fd8a8cfb2427874ecb79788cf0f045705de18277dbd3f91e5595aa01004f615581d697ab00607c5363a31ae7e09b4be43fe71d2f79a347fa528db81f32db21d583e6950db6d53c9f90c89b67afbd5210d7a03121518f390939113b0b721f5e684cab5a54925aec0c3c067c052c02dc087c021c071c0a83f31b203ae8080a822ee1c931b8f8809fe008080c01c6fe477e2e94042cc225eeb61a80438effb3b7129648b44662260600c3e897f5946e14b24e19d46c954c301a61f2159367114ceb68fbdaf1081455d5e1336a78946256ad1e9d3610a044f37b887865b0426076a1d1a138fcc66731353851905d96d2a9bfd63f389579c7980ddafbf034afe3dd01e8b9fdd49cec10383858dccc9f69ee3b99307ad37c454fc004ca131107fa58376349f66b46b7d87b6cf54e6aa37a24348424b333c177cbd64a92aaa2e273b06280147026fa6794978308f44cd1fa3bc2a2c5a6909c846927086632527030308601e480004708405010302c925c4be847905048005040146030571413f5686fe820573497a8300814afe56958308046b4977b6d603047307010281057a4b2340c28011590ca8326b4d66088502020166c0d2279cc2208a4e96292700f5fa5084d618ae18a7b718228803b21f0f1120100a150e0b10be451d19132a0ab8bc24271a24ba0b1011b1151631121c28170ff94207190e13051a0db68dbd0c27d0d2c5a19c3badaf96c2b7a2b3b2acd8adaeb0adb7da9fecd7c3fdcfa788a7a7c34a96a718e79b4ce89db3aebdc15c280c180b1a4ea3a3edb6b111a4819d7e0ed1a38221213319b41e10389c84a9b19f6aa1b69932a1aea19ea2a6a0a9d195a2a8a8e096a3c7956e93937195929ba0d38e9893769282a5895199cd8a979a829fe1975a8e8b299c7aa06a8497a699b29dbf90848c3f45705d696a77855c80dd4d717d6186928a9c98a385ba412d92ee5388528e868c733c8c7f4835364e8f2f82586375778462808096677c6093cf9a6d4f000d536c8e619d7587fafb95a2a58b9e7c8f638262c0c0a38ec0c0c07dc06e8495c0c0c0a6c0c0c0b8cde903122203114c62c082c0c0c090c0c0c0a0cbe50de4fc0034b0c0143cbf6c894fc76f2d96a3c58aeb4d106224f8319983b503a0d41295339043a6fb8dd7e79572efc0f739d21148cabe22cd54830a0865128e32edc6febe0000000000000000000000001415403f7f7fe58b222308004fd28ba8e2446ff19e43c0d435373a1d8044454647003f4041423f00404141404041403f403f40403f403f3e3f3e403e3e3e3f3f3e3e3e3e3e3e3e3f3e3e3e3e3d3e3f3f3e3d3f3e3e3e3d3f3e3d3e3d3e3e7f407f3f7f3e3f3e404041007f3d3d3c3c3c3c3d3d3c3c3c3a3b3c3b3c3c3c3b3b3c3c3b3b3b3b3b3c3b3b3a3d3b3b3b3c3b3b3b3c3a3b3b3a3b3d3c3b3c3b3a3a3b3c3a3b3a3b3a3a3b3a3c3a393a3939383838393938383838383c383b38393a3838393a38383939383a393839383838387f40407f7f7f407f4242427f437f437f437f437f437f447f4444447f457f447f447f4d7f4d7f4d7f4d7f00003c3c7f7f7f7f403f3f3e3e3f3a3e7f7f7f7f7f7f7f7f7f7f7f7f7f7f3f7f7f7f7f7f7f7f7f7f7f7f7f7f3e3f003b3c3d3c3a3b3d3d3f3f3f82b8a8127b3913119192d4a9b31c620d98720c890d51db12a090480ce31086c11804812014214010028210420447480821c618420c953707274489074c890aff7096f29dd097dd39a951443803f749a994bf437682291b53a68cb3c9eee5624aa37e3a499172387a8279ca960212b9de2242138d54542b836b5209517121e50566f4b920188221008641080077b8d8ba1e0820300c4318ec81491fe8213128b1cc32e361f79683dc03b1779810f384f9433836b50db806023e6a9fe5a29192628dae9119119650c6a2023f0e52b6c4a20741e957a4320cebce80c00cde7f58a758cbae9c378c5dc1649f2d3428b08ccf65f6d87aa5dd4c37ceee02924427d7e179be4b9de962f00c07654fa88e32da2d2a9c6e8a311a52786ec7aa8bfc47fa73d9df0905f57201c6ce0dc2efd632cfb5e59efb5bd7e3fd14c961384138de16438a0c33f77c3831d860394b8b3338b28ad81b691971e0343941be6a97850b596541fbcb4e646a3e0e64a8063bbb4a1cd3e41fe3bbf5ae6c9adcb893548afef84ce30b7932a8ab9c218c7b0ca9ee090f490547a90008b332072ef46b086dc28915b0f9a424c3f8c34178305529fa34225421a3b4f9ce4f698c0c2645bd600be3b0766647f599dc407611eb957dfecec9cd11ec2d69d58a451a36db0d225d208897fd3987425188a2107c7d7097eae70e80000229fa24a0184a41611400c552fe91ecceb94fd293360418d823e08475c24f164e762fd0531a75e6c43b394e9e4fb45128e6842a1e6d18401332000e63664c69866300bc8c609c51069f11bc18933141181d03f43232c39c627846c06108c61965f419a08b31199384e16670e3e52da6666f189e8b689c1106c7083c8c893197645c142902f903f90df6ab82cc7810d0a1f48c51c22252a97a9250ca96e8041b14a01fcb719c7348a373ab2c9333030f80e98f9d48adc43ae4cdb3850c7fb5999913e3c908e7551238ca287c63496a0b4acb93ee2071b430b0708461a2a343d5562c0d9dc43286e338c2a1f669cfd514f95c4d9197b1a588d2281225d210f86a3eccb0c20ce3850b3e3194874228340ab5a333554ea714c1c9ee9c871374d23f994f5c27fc490b64f77231a551ff9cb093c049f9443af9f2938ec251515ac1a9511685456998b2252ad0ba7d7d05c75780f5702a3470380d2efeeb1535700c0d60fe772a6ae0000d1ea8076ad2a6114a949e8b50c20595e84f56a66c094f309bb2328c123b5c59c2d392256993f7deb33ee4d9e0b6b001e755a41ec39d7fd3fd496825327ef89b094d33890824e0954f6b197757a3620599417b12cbe6b7a0d89e74378238caa6406e301e21e79036534cb05d5e3004403808813000051060014b012a9748e95a46c5500225a218ca01e5537089ecceb94e8293e69375f23f914f8020bb1788521af5a309d7249449c944d72432c15951bed5762f509fb8488aa10c987245b221ed7cd9ac0d14dc7039bdac740305dee0714a04c148e585497321e36b9e81325026e3be3d4c40619116250a608450f9b9a04b982ae5931552b6c4fef3ab893fe03255628e5b567cacb224db735eebcc07bd0ddc15f4c1bd2ad730dc738f93a24904316231893af096a7b51cbba9593192986427b120b805a5f5497782385a185838c230d1d1a16aaba561a5dc44ecb89888bd9c9288bd9c9ac85e9c92c8ec85bb29d320c225db6c1d7ac0fd0d7571bf997a1450dd233285dfe6f33460ec51fdaeb9ec440a856fd9e05d1366f89903b2315845ef9c438213837c405a2e0dfdccf49ee5e57c18549f544292
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	0	20779	119	1795368204440603341	1795368205485042308	120	102	5f2e2abfcc7191b4	1795368277720347576	\\x28b52ffd60c0c5856e00b498000100cd05236f4112a290b52fd48776a610569fa1159221707a3b29f203a272c3204089c9d382ffe512ad28e08461b8d829221e595e6890d8bf2225a97418d552b630ee44442ec183b3644b4720397fc4c0b880505c31c635c8a436c2a7a568cd5bf150a21502f3e25658ff4a7cb459c5b5ac523fd9f5c513aac68ac986b653ebbc6e2f1b7a0386762c2403cdeb1c0e11a3f4d041c69a9664223dfc35c988efa8472f967aecf3af537799ab1855d1f454c474b552f5204b76e9f26604293a822b07bbb9e10168b6c490357cc3706ffdbb2bb26600a647a1fe0eee35170f297097134823d8e0d24eaf557cfb03715a637bd027b6465b638056fbb9b2b685feecbf5104a1c2b94d9677fb71f48942a36e32259a2e8a2c413b250f43403c2adc293646370a2f0a33275e360e6c3d1d5a496ad25a7b7f70edcb9f89615bd618726855953e7e3a3574c8375997a3759c38be6b459267b87551e4387c7c36b559b7a3b74d5f7ceb473dba8ba577a201010001010100de6dea18a126bb76adadc5483b8428af7726de5aa046ae063d2f87110a185c449a72fc93da73b9de573eed09847c95bea23db4afb03c0bfc7dc32c490a590be0a306a309a3e0a3a3a3fc15747b62ea10772fd8109f9329cbf429ed39990eb707a3b5e50109a8721f35ed10d24f4b669e6565e28a0b23722027e4e8f088aca8aca9f254f591ad751f8473a844f560fca3e873612a30d6fde61574b0c8f0df3577f663adf77c8ba0ba933e860144dc31dfa387df75b47e311bd9fafa7c899076adb929103604d1cdd206d412253c0c668aef05ac6fe4759532b6f9acbd25f2d4e513a920c22811489df50e42d7127236b7804cc06b02f6f789f3dbb682c40d7a3e11eac050eb9007986c687653cae46944bfbe2cfc2b30564eb397e3ab9e73ca740435bd9755480126bc169fe278b5d16ac3e94eea969e89fac2cc912411eca8c1e9eb0592cd62e8d810a331531dca0c9ba3a3a3a366a3a3a36d0307279fa3a3a3ec70e5a0a3a3a32797c5a38ca35176d3a301a327a3a39ea3a3a369cbe2a3a364a355a3a30d2aa33e0a5ca3a3a3a3a9a3a3a3a3f7a3a3a39c16a3a3a3a3ff4feba3a3d4a325a380803718a3541c77a1c2383598bb5eab16d6ad0f527cd1d8ded9c0c6621e5fea8bae33d6b4ea84a12815a97be1f7930a197e22d5bbb5846bd0fa3f0222327d014228db4cd67e2837b960ffe4cc2ce230ddc9d5a6e0aa21d1756181fc40836c8f67da2b7c8187560e6dfea66f26d02c1000d6365ef2e078470e8e3e10f6bbf55aeeec416be4a42756575ea66f26f6de425b473b9cfa036169d0bff8f49e00d84405f56f75a35e747993a11a7b029198d64d9bc04af7f778f4d3aa5cf7666a3723730a1814c8bfb56b0a77b829adc9cd3f392bf53e0c4dca4c63794d36f814c1b6b4e26126f9fa6a2bfac5d201f71c9bee54a69e480527e939d43caaa1c64e630fa3709516549f281a4f881b5efc904da9e32aa1d71cb219b56f6260ab7a6e7b9ccf665bbbb7c1344ab4df5c3f035453c73e4584909d933b3676b1a78b669975447fa1dbb984e622dfffb72db4df2c9896d061850ad05b7ce5724133b1b1eb4ac79eab624a49103a71824300605a3b100f335a66c223c20be3557c5280765e42145167dc24615a9cbc0d698caa7a6af3909533e0eed210e735027d02b63bb75952f9ee554c23522b6fcb2aaef42a3ba09f06c41c53c0e808f0e979d653365f815d6d3d0e547d49f88e0cbb1cd5b435d255021d67df864935192ab355e4542c5a7cf098d05f3cf0ee4f1d82b0c955c2b232a3a3a3a3fbbca3a3a3a389a3a3a3a3e6a3a3a3302281a318a3a3a3a19fc6a39aa3e02465a32ca336a3a3e467a351a3a341a34ba3a34fe5b8dcb6f484a3a3a3c23bc905a3a3a3a3efa3a362dda34da349a3f846a347005b7097a36d5a1f554a4a2b245694869843b5ca400ff09530244c82b6c34e9d8f67c46958bce168c70467f8505fa394bc0cb37f2126cb1af2ae15dcad6e1d9aa5a28436be9184729d532ab1bc6f3c91eb57ebb132b7561387f7092e1d18f163c4671d6a2ceca5582fef99c691518cc6ac089e74359991470be8bf9621fc94fd2c8421f798eca558e605638adee1aca58ff8243137a43591959ccfcf98bc00a382b27f0d1b008000804080a0c0e0001020304050607080889098a0a8b0b8c0c8d0d8e0e8f0f80004080c1014181c2024282c3034383c40447d5f00e6803c8593f2dd6aada6cdb066b37644c07880855759893fcba78326073d4c7798658a82c3018b6833dad9a1b2925f71be719a24a2a9ce3267c0c3c067c080a822ee1c931b8f8809c49edcd3e0d7a9d2adb4c5fe8b720000004180c0afbad6ceba87473f43d1887d4dae8b2c5147b221ff87f483138f2fed581f254914408c802183908a81386d3369976e374a315e2bca6b78e98300c19dc262ba04cdf07e5a2a13d1c466cef5e0b82085077c65fa576fbf222ffb28714ce7941ddd45fbae757305056843c1452f45a6cd067c9983481532ff8f857e1edad6e502d7cf32dea1e1b5e9dac6df21b988c09b9c96a2922397864284164e90860d5b9396958a109c8f087e1c320d427d418f309d0d6093a21d04ab534dc182efc1df7d89a23bc57371734aa65655957551628583a7e85c84846378838881818d7987846a8d9e24b48e34808bc584848a869086c080c0c0c0c0e4c0c0c0c69db3cdf0c0c0c00b1e3d2ac0c0c0f9c599c05dc0a8917bc01bc0dcc0c0a1c0c0c08291d0c0c044c009c0c0118ec09fb1cbc0c0c0c0e8c0c0c0c008c0c0c01d33c0c0c0c0567252c0c02cc040c0c134b0c0143cbf6c894fc76f2d9677757390a09d706a6c5ba3c58aeb4d106224f892bac7a49dda8da0c4b79a319983b503a0d4129556139990707b69ac76849b339043a6fb8dd7e7955b2e7937776838804f65a372efc0f739d21148ca8c219f898479579b5c7e88be22cd54830a0865127639e898f3879caa4c138b8ed8c832501ced6034c623ecbe22cdc0c0c080806080707080508060608050808000400000401415c0403fc07f7fc0e52223c0084fd28ba8e244c0c06ff1c09e43c0c0d435373a1d804445444443434242414140403f3f3e3e3d3d3c3c3b3b3a3a39393838373736363535343433333232313130302f2f2e2e2d2d2c2c2b2b2a2a2929282827003f4041423f3f404141404041403f403f40403f403f3e3f7f407f3f7f7f40413f00000043437f3c3c3b3c3b3c3c3b3b3c3b3b3b3b3b3b3a3b3a3b3b3b3c3a3c3b3c3c3b3a3a3a3b3a3c3a39393a393a393939393c3a3c3c3b3b3b3a3a3b3c3b004042434242427f42417f7f417f7f427f7f427f427f7f4344447f447f444d4d3c3c3e3f3f3f3f3e3f3e3f403a3e403c3e3e3f3e3f403f4340003f3f004000407f3f3b3c3d3c3a3b3d3d3e7f3e8245a812cc1c921111918c049554321cd20ca4320a33a2b20d12e08020088728864110840061108400411004410810028440612004a2280c11deb601dd3baa30a1da72df3d0b139d0b678f7593c1941ab88eb00abb77ad7abc3dd9ccc575cd9e70768e9dbd54e0aa488f63f6a49b7267191c9ec32a861929d3b52be4850279797861a7968b9c89927acae192769dbd19389e2f6d5817fd91997a27835883281967cc098a8e938f676db0dbafc5d809f8e27fec2f49afc5073fc5cbf705baeb05439cecf82c6e18992bc99565c2313b3b25683bf1139712543b5f971234273464edca670907761ddbc741741e37f394b2fc98c061b0c647f961c3f9005cd7a96b24e6809ccba480cf6a050498a37a5a0fefd6f1b8d84a75819d91fa9714622b02dbfd839821ec90139f625b4f0789895d127e0c0b6d9721030576039202aedfcbae82d02ffa1802646853056c1ae33a3791b783817ed552182a419c1e7d12b78edb25f4176da0936c82289f6d835eb73dd0974630f9802ab4673659c353124da94aa8cd6927979f1cb3a19f623a509596ac307a285f24c453b2ca14cf61aadfbd4fa5deda93642c3b162f112b2e62c52613322fd99168c7bab17beda55adc9bf39c362d39d136c6366924d873b8bd64f89e0783027d8da64123b19f9d444636caa9ce92f61db819781eef3bb02efa234c3d2872c111b1193238a87b6c0b620666c0d0c55c0b0213c31643087b2d084c608b1b74c19ef8d56069255634c5b0b5e6dcce5f4266481c3454ca089d390bc2794adbadf800839a1feca7311e0605326333585104033c1b405fbf9ea46443bc551fd309bd8ad38866857e6c9a7142e106ba7a8292a9878c1a3ef350d15372f61e115e3a976c4560d1ac484620b3e1358a82f08ffcb3a70625bae8804a79caaed634ad13cd4baaab6a845d73af3017a6a6dcc06d984dc5f687ed506bd47f9dccb4e7cf34645eca4ca4f4a0a33d9db397ca7a96cbe2bc0f8b7506ee067fc3eaa20ba457be41a0f15345d941da2f600bda02b770b9bdac6e8ec71a425994f0ae81d1bbc6fecf629dcf82db5af5ba0469d2561f13301df28a1de0efba9f60db153f1e308cc7a96ff61a48b7c5ba5e28d25fcddb8c7b699e8d82dfa9509181db959cfb8f07bd39d360bf712dad76706d15534a36bdfb7b91963fda71c438f064209c45535f1279cf250b69a2080a744f495d65cfab4b67194a1635cb9879cc6661a85a7cbd665c885dd40d6a83d96a368fad1eb643fd807b67d2d3339369f0bc94ec48a956477b3a673f95fd2c97c5791f16eb0cdc0d5e0daf8bae4a8bfc8300e3a78ab393b45e801024040ae1627b59c51c0f343092483dca3470d65eb6323b68a235675d9d5323da4feb753232e9cdfe76605a0ae1390db7e2810c35f3d84f633c0c0a64c666b0a20806783680be7ebdf8d2b61579786d8f56416d9b81acf38c333edbd29b77a6aa1d636eeb67a3069e0f6920f59e148a0e194794184c685ad1022dd4e805c0d3a0dbb4cc9d0d175d44b539ef2202
\.


--
-- Data for Name: chunks_20261123; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.chunks_20261123 (run, stream, first_step, day, last_step, first_time, last_time, rows, columns, schema, received, data) FROM stdin;
\.


--
-- Data for Name: chunks_20261124; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.chunks_20261124 (run, stream, first_step, day, last_step, first_time, last_time, rows, columns, schema, received, data) FROM stdin;
\.


--
-- Data for Name: chunks_20261125; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.chunks_20261125 (run, stream, first_step, day, last_step, first_time, last_time, rows, columns, schema, received, data) FROM stdin;
\.


--
-- Data for Name: chunks_rest; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.chunks_rest (run, stream, first_step, day, last_step, first_time, last_time, rows, columns, schema, received, data) FROM stdin;
\.


--
-- Data for Name: columns_20261121; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.columns_20261121 (run, stream, part, first_step, day, head, data) FROM stdin;
\.


--
-- Data for Name: columns_20261122; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.columns_20261122 (run, stream, part, first_step, day, head, data) FROM stdin;
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	0	0	20779	\\x08003c00000000000000730000004c04000000000000000080440000004f013c000000000000006a0000004c040000000000000000000000004442023c00000000000000090000004c040000000000000000000000000000033c00000000000000090000004c040000000000000000803f0000803f043c00000000000000090000004c040000000000000000000000000000053c00000000000000140e00004c040000000000003eae073c267b5f410600000000f80000000000000037000000000000008ed1113c066ac040073c00000000000000090000004c04000000000000000080410000804100008044000080490000f4010000000000000000000080490000804e0002e80300000000000000000000804e0000004f00041a0400000000000000000000000000004442000031000000000000000000000000000000444226022502000000000000000000000000000044421a04190400000000000000000000000000000000000000000000000000000000000000000000000000020002000000000000000000000000000000000004000400000000000000000000803f0000803f0000000000000000000000000000803f0000803f0002000200000000000000000000803f0000803f0004000400000000000000000000000000000000000000000000000000000000000000000000000000020002000000000000000000000000000000000004000400000000000000003dfb0a3d267b5f41e60101000000000000000000822c1f3c18d25b3f1a03da0200000000000000003eae073cd8eb973e35044404000000000000000001150028b52ffd000065000028000010000101000250450b020609e0684af493fe83be5c4936b2cb8cee700ef719cabeb2a0edfdc8d6ba4f41215ed1f2e8557c96fe0057ec629650de44efffcab6828e026a2bfa17cb1871bee24f20b16b1716a85fb20fb16a3824d48d281cbb977fcea1af966d727d870110eee2003d0e5f99489fbf7d3ba166d102c0c367522d87217167a83f31b203ae51e6a6babb4794f8171046d7b2142fa1bf756ade288fb3758a33b5d965f083deaafabdb48ccb711102403f3f3f3f3f3f3e3e3e3f3f3e3e3e3e3e3e3d3d3e3d3d3d3e3d3d3d3d3e3d3e3d3d3d3e3c3c3d3d3d3c3d3d3c3d3c3c3d3c3d3c3c3d3c000080410000804100000000000000000000000000008041000080410002000200000000000000000000804100008041000400040000000000000000	\\x000000000001370028b52ffd0008750100b88080008000800080008000800080008000800080008000161400258a27533c99e2c9144fa67832c593299eac3601310028b52ffd000845010068444445464748494a4b4c4d4e4f0c10004602d2032903a980f440ca402a203d9032900a486f1116000000000001440028b52ffd0008dd010024030080004080a0c0e0001020304050607080889098a0a8b0b8c0c8d0d8e0e8f0f80004080c1014181c2024282c3034383c404401007241fd1514011b0028b52ffd000895000028003f40414204001754f503980f5426003700000000000000000000000000000080003f0000000000000000000002a126bb76adadc5483b8428af7726de5aa046ae063d2f87110a185c449a72fc93da73b9de573eed09847c95bea23db4afb03c0bfc7dc32c490a590be03af2b10e7d349cdc58f966db6c5b41e59be2df68042f5b43bcacab03107b8a790fb891d54086fa4a640c7ec8a9562a966d3bcde8c31a96deaef3a2f484784fa3a26f064ce6758e1aacfc23e60c5f07931fa3fdc0bf02d0b89995344d0bd66508061e0ffe3be71a021e74727e8a3941cee6fb98fb2ffe9b833dbf0a674f14f66f9ea78f8e3ff6dac7350d41beaf81ac66ef779df88c9dedee56bdf9602e52c35c39bf8c909aec11d177b05fa469a77040df515d49fb19116200c3b0a7f0868e7acd09ca6fb0528736bf871179bbb1a7bd29f6703230117c13344e0eb2370ca8e1c8b8687f786c9ed2c29e6fc9054bf9cb80cf3cb61d7e9e2899136d18a84e30b1b106278ca6250f69060d72f0d3077b94f7096ef78b2c30eea9ee699b8a3ef414649eed343ca0ffac843029700000011c4a2eb8e387c315f50c561835a2e8970ebe304f1477a9c5e717b5b0c479a86d032fee6df7e01c82c7112e276b8bc5adfc72cc3e1ab35d101948d80092b6f27b027c0a0bb03540aae96a0829cada36bad978e9b4320f2eda7a8a1e06026698e7bee61e8afa25829756d2b4cdac122334c1d86a16b286c0402372d03d361047f591c5f699b06757a0a01575a3dd89d291f740980ed7d1bfd2b508ca9ded0adf641e9903c0d61225670cfc5d4646299921fd33474058ce3267f2dae0ce70e70bd9b0bbbe1cc8e381293322871b3d6dd8035764b48f9f53f1dbd60df52f5cc0cf427ce89fceed1a7c640b6f8b65ba6e9b1bac1ed8caabfad4a21b49fd605df98d144f5ace601a9ec635cf32c788a7cedc2dbb4524ea4164a98e0708cbe8f767d8da4206f9329130f3c9210218ef80d0803d8f03597b147fd2ee96a3a0f15e2db99f422d762db465ca094c6ef4f4eb432de3d1d8e0188d2a807e975f6b6ba0835ccb8bec481ef232b83f560d32879ab1321897bdd5ca6add9214e875a8523ed7420d744420def170b208de3cd6cc552b0120ebc8e6e011f36997799b72bf8e56b8c77c40f86c17df22302aa6d1132520d3827c6d72ab962c1d4fc342ddc05051cdce206067576a46fe47fee383cf58a2af9c9d512c3c33b1cc572205335600c8356d0d3084160d777667897bcc062d7a6f5857f1eba79332f67955b59cec1a302669138a5a0eec9cc987963a0a6689e05b5a23485e1bbb0c421462d47f48b687693991720aa3a1327595ba1961c89638d67cd1b6fc9a20cd6783eec2dc9ce53a358b5023fa7e740a4838ca6dbaf021edd248b7828115de359e415ad1bf6a57aa30742d9c0cd7da1ba1e44418c926284ea4fa1c3b0e64181e5abdceeef917ef3e6e351af2acd5a43ade4fd97678c83d34b1aeffe0e3e2228481234abcb0a066f9a1b1980e493dca4ae0ceeeb080ae41278a38d6542fd02e6aee74b6eef4748a14ad6020c2382c9463d9bf2c883e9582826f63b997fe61fb57f58b39d8515448a23c6a8e021a7b029198d64d9bc04af7f778f4d3aa5cf7666a3723730a1814c8bfb56b0a77b829adc9cd3f392bf53e0c4dca4c63794d36f814c1b6b4e26126f9fa5b81e8e0ab22740af00eaa4874a9f783f7dbf7173cc16eb2f6e8037e7ed454d1fe0dd698260300cb0a377808b3f66541847f4df5468ce87a00033618103708e524c79dc5861393b827d69ffb6ed9767173cbf3197afbb7637690efa8a284826a598f6dbe01ce2a974f74759b133da91ba6a1cede9ee612e23c0ca87bb2b832896e9f8559a52cb693ceb2ab4f257fe170e051e876985167ff22a83f1513d7052094b40f41f8df895167e970ccd1da01c982b821b1fd8db63367316c35e0630626abb0cb1f28c95a6be7614560d144657efd0a68017a430a036000381721068ea5f3e4ca1d3c7e88f980bfcb5e1ec2e716f1c796596e654f17b522eb9bd7174ebe86a03ea8049314c312750cbd8574171800b848fa8b290e5f27b1d6d1815839be029ac3e85a2ecd60334d1db29b85b458fb16e5d4539a65924fec73172754960facc7027ba7efa63c3b9c4e8f22ace77efd2b6eb1027bdf8e317f5d8b6156c961a4ef0cf7c7435d6ac516f25dd4b6a47b98155d35c008aa5f1209f838e4d6b7a74405044db0b5200de5b022cc6d476924eb58c57245e77d57870ab19a4151e95ec5617bd43c58231c2f1cfb5eb753a5589502e2961561a48db523efc98b606a539de8a8eec61070a3b48ffb28a7313f19b91bbb5df198cac20d361ccceec6ab1cddd4f08b2765a63ca0473237ac6db72f503b8cbb49bed47cc9beecf5b5fb12ec6b15fee4b1c3db97bd181ebe255bebafdc7f0376ab7b3e5162223d7f9bd9d7664f677d497314238b2fe8494e0574e6ce9fa377a6e9472066e72ee5ee796424e5578effa12384272c5fc711a1f60361c0d981065f6940e2afaaad2ba29822dee026d3f6fd38819ac75dc45596d2f19975e7d9a6d1187dd6d9ffe5567192b4f56d3401c321fef86bb1f70eceb92fcdf6acb2ba9872fc7fcde7c065cbb7795bd200ee10f8443607cf7d29973ae1968a088f911846ecee8ec14aa85d9387dcf78ec30e34e80f2937d1dff73b38dfe9117c01413239f209394fe01b7e44b30dad2cef8efe2410913939f60f6083092cd11d03a470724e27b608eeb0c5dc1e6abe2395afdede62db93517209481be2db12a281cb7f7c801401b94a24f38f13d43e79009ae5ce37ecd9e60d869297167778c4dfa52b853d833493f8131da99dce177f916dbecb076624d30e3fbd06bf3a33588bfc5ca374ecdd0c8daf052e5f0e99c8d8f29913cacaababca3b25ce769e17b799579e0fe3c46a779ffc32c622faab28b752f84d480eab46b5a1d7dcba7230c633df68846abeb9939f7768103cbcfd463a95c355573825029f9d280bbf4e533140e405a00315650673c53102bd0827217dcf83d6e27787d36db1c720eebbc963b54f1f473b86499646ff3590fb1f5e8b62a0f98c334ff7b6a171ef58e92546c0060a54a35b62e57b31b0aef866315d8cfd3b6b09cd46b597d8eb783245f82e53d1027d5f00e6803c8593f2dd6aada6cdb066b37644c07880855759893fcba78326073d4c7798658a82c3018b6833dad9a1b2925f71be719a24a2a9ce3267ab8231564fe978ad0ebc4cc3ec57308d061e3b5283d7482733cb2038b50349db295324021f7b962d8ff0735813338b3d384ff2c5638a7ac555b38d879e66e7cd020a8cd73919e4ed43ad83bddeab4b21f9f94b6e7d08f41d6718bfa70c03be4a0481a47188ad20f6eab137008629dddbba03980c6ef88667bdf430780aa70d30bab2bf8e4c008412c88fd8a8cfb2427874ecb79788cf0f045705de18277dbd3f91e5595aa01004f615581d697ab00607c5363a31ae7e09b4be43fe71d2f79a347fa528db81f32db21d583e6950db6d53c9f90c89b67afbd5210d7a03121518f390939113b0b721f5e684cab5a54925aefa6355a781590dc71a25494d04271358736cc7516e48cbfd21f704f477118c400c231f8fb5600de6fa689f2116126ef2b5cab7da9395a8fbbc9a8ea6279a55a430965c9e68d14423158b2f86efa815ba4df31c30a1e7130e1d24018484ef4d8570d035bb03b8428caabe4b3555027cf94e118ed60457dd47731dde89dec4b6e11f9a9d6effa133ebd1ad80947b945549629f183142aa235169455836ec5ddff8e71f53a4e551f865fca76a6c0fd6179c83279817003ca67114b20aba9bfadf51709470d5e3339910ecc6c6e2060007ac67448d3166e3a9f735349d46ceb62c04208386bc27068ff29cc86e25e5549ad7cb1f5863dc8412bd9fb5f58baf376ac9974819b21e290024890141a5d78eb6490983875268ba3e14e4311559b2ad3bf49b8be19c18f279fa4877f12f098092e4d5591fc803ac6e8e012e2d423c97d1a1ec60b66b9f803cc126ce39983b13812e8a258abf671689b71a5db82087948da33ced38e7d9291c75697c37f4270f66d649869647a01e866d86d1566a10e9000212d63850a51d28e68707e2bc086113de55a65be19b0e2bde0348c79502aa5629eb846a284906100b8fedae686c435b9f19830bae6a44238f6bd7f79f1b2c190c1ea1ccdbe90a168a0230e7b37427438683b80c50e9cf7844a6948c0cfb012375dd58ed90cf9730fd624fab1b1b091f9e6d80c78ac73868392e3c68008b0b8f47b9a29c33bceda733f685318671c8bd498999486c14fa560aa1f9d5b5d98a0fbeeca10f64fd9ef82d2e1b6a3ad3286ad9ae3cfa6a205cdb564ae97c270ddc696cbe1163651688fb30a818cdb3162b832ec34944350ab61ef0d3aa02d1cf9bfcea5f1cb547a8a1afc91fad2783699ebd0be04f0e6f1fcc0cc3661f00a212bf5ede4598f6cf76028de4aa23de13e081a449ac4a4eaab769c6f80952991be5711fd1fafa07a2920cd2fa1c0ab903aeb976885b8e183290c28341c6bbffbd196e6b4ad806a5a7b25933c8e87b1454bd9886b49f5d42e18e14ad265a1a4a3f6149b06d8eb10c8ca69d7d76f065a410b537032b1ee31dbe482ec7cb84a9a56c2d5bbabed56b116dbf3535834d0758713d0007b82aa6a463181be03c979ae4f3e241501101290128b52ffd000805090092090d07d0e5b49900f104a5e5759e5555965959abd38a95fa31ed2a538d9b665555f7987df7f8f193fdfff37f8673ce39070201100101809aa8308b26690c5002514ede0611307c2e4b9a3d0e6edeac943ae96e282c8c7b7379dfb8b0b2df3f01d62ca82492582a15a0c94895660e9d7e22835594e406436aeead9758409df9357e785e75f7543dad2420ce84464c95a62586dce0e98e0640448dfcc32bc9eaaa3b8d6384b5b386e44bd8c2f90b9cae42bdbc21e52092ebde25d2f0453e85c64e9d87597689978cb231351a051562366bade2751398cc88277b5a001b538174a1d1877042a2ec711a2c609cfd4a49e317ef564686eceda272ff171c15c3d9f9ab83cc83ca21f0532f96938089e6ce86c1b3fea8a9168082053e1cc4fd2a9001000000000000800041
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	1	0	20779	\\x060000000000390000000000000008000000000000007754884015d222410100000000250000000000000003000000000000000e4efe3fb7638b4002000000001d0000000000000003000000000000000000000000000000043c00000000000000090000004c040000000000000000803f0000803f053c00000000000000310e00004b04000000000000d9750b3a08c9a03d063c00000000000000c10d00004c04000000000000a955ce37ce2ea23d01120028b52ffd00004d000010ff000100050a600102fc15747b62ea107702c5d201f71c9bee5402a822ee1c931b8f8802404140414041404001120028b52ffd00004d000010e0000100050a6001020eb707024e630f02fe8b72023f404001120028b52ffd00004d000010e0000100050a600100000000000000000000803f0000803f0000000000000000000000000000803f0000803f0002000200000000000000000000803f0000803f0004000400000000000000004bac0c3a08c9a03dde0107000000000000000000d9750b3a3aa6d23c3703bc020000000000000000f5d8113ac01bbf3c160407040000000000000000e65cd137ce2ea23dde0107000000000000000000a955ce3754ea463c3703f6020000000000000000d26fe5375323233a160426040000000000000000	\\x00000000000080003f01130028b52ffd0000550000187ffff00100040a6001029c2e9c7f2c6c0817a10718f5d472a15ac3f56b9fb2041d0a998ad9a85e237f96f64f2995da01200de8f440a66aa0e13da29b53bbf853e6c01ff9b4a37461881dcee1e1d1fbb21c49aa0838ed0c39c0dc062c58c5a3cf7953b36b9cdfa7630b7e4e9433152291c1ec7283e45dbf4597779f597dddb07de4e6650825bb214330b58d992b60ebf190095cb0717693efc32b69718ffb5301410741afd8d0dae18725b4361cd8edc7cb7f5527c1833da9458b874e76cbc6cd52d46dc6fa550ab3d381df508d3d86bee4e17dbd9f8d716157a680f2506e1131459d6f43720d2f1fa0049acd8462ea0690369a3ec4cf76c7ca62cd792a76a05bf840d0c24543c8eee1a5935b02f2462e367a54467bcad114c47bf6e875a0d26b36e55e40e58e8d73786f51d6458133194b01b4b4513cb2b060461c978ee4f25af9baf4df8227ecc27c76047a4832cd425585b4e3c176a850463f410312366c9ff7cbd287ee7eef4fb38e0f41638acc52295e53efbde18bd374c8c9938aad2b41c4005ab20346d07e8364567c048f61e624ccaa080a64010c3cace9648737bf2d8d79b13e1a9c73cd17df6289e822d3d82dbeca84d71b5fe4e131724b925ce91cf8914fc2bbcea5aec164612717a54c9e207e432bda45a4366764bce501c26c3775af29b09cc94e4b93b3827404328c28b7b9c83c44d1232b598361734b4395dc06933d4e07a9962ab3ead220f05d1543cd57226a4601919f85b73af61d9cb414b7902df9aa506dbcfff756c6aa34f7b284384543ac340cc556bbba073d5afcc5eb447c347ec3ee752ea3981eda89029fd171b6a9c367bd3d7bc33f0358d2df5a2688b7a7d26e99007d620dbd563df6cc34a5cab9cbb696a5bd862aef43903f6128a024e7f763b728edb56b9aa90e191776a0eea11a05710ec3271627c66296d27c00a6f1067d33d2359046615f43acf1fa157d4f3fb302c7be04298efda57a5235b85ea48d3a1682c654c24ace5b04e78a69509b4b01b3112c24800d60b9da946fc535883ccddb6baed6b4f125a0ed68ba5e96ab9512448efa34b5aa6cbcfa4e410a94e533a23d7c081ef339c944fb95a4ca755d7e69e0ebe39a316f4bdce80f76da72f955c2dfea962566d317a734c8c4604c8a08c8c2123723f13f88a49867d9e797d1cef5c1fa6dfa390ed37c08408488af050b06175a96ac7dc00f2bf534086701979d362b98b8a241b254cea6a2e6363f5ff0f215a5968db5aae85129e7390c8000b1b397d3070f6f27dd65ea3b5b11ea1507bb59b2f2fe127a4c5b43e5cc1f3c5447c675e532dc9d4a1de222b7bec2a5b38a5e6523672e1651c1d3f1a2acf15b31eaf0791b1eaf944ff517c4286a2de23a4f8bb6f5f8d5d2d840ef1ed5ebed0b60d550136cc5e50e79ae3037b298b28ef0b340ff35c253112b53f456e48995295152b9104ddde3811786c20087c0a9f8ce9956632cb940ec83687e5af58a16ac27884165bd49873ffcb44ac5bc98669241bf026936fcc365fbe4a317e4ceca3903d0615ff36d5e6f8bd327df88d874cc4e7e026d71b3f50a63c916f84f69a538b7edb54ad3e982e276c8b4c596e5165d9d1dcd77a0f92618b8098a798a256d68fade6a8a3245d21038abf83db6b51c55ad95ed86a94359263625dab8e820d52a3c6ab0b472bb34b208abda4beb357aef6974b63a2646dcb997185054d10d8f7c540736c231ad82456ac846a56abed829b1b621c01d7c0b9e07f56bd7cad5500c6ba03486f329a66f31634e15107ca2c313d898b4cac1bd3b5db799ea2b54c4843e3f5f222945cdbe634d94a9c7af6aaf7f6b3f27d004551e4cd20288372fea83404a20714a0a54239624ebbab0d63f35f53727dede6e1f26c5b60a06fbe7712f6a756ee7707faab6383c638c082af2130f3e4eca6da826b8ea1194746e0815112c2b7ae2c7da3b0afb6ee7d010109da87691e4358939f362cd8ba9727fcddba81684fe342491ec472f5cd678630a844ab22a24cddb1d13b2e1d43c276951b4c4569fda492be3b9b67a480a25e0628c5a660f0451a00ad4cd76373b1a164b073495d1d3e3b5a61383eedec22a9eb74b9e6319945aa9cd222c2d1559fd1275e774efe38d503697d3e3d9cc029ba0723f5dc023010d9e76120798125a4bc04e66df93e3c8e324031bda9d006f96e9aced6d1b15d3e147edae0f0b5769f51f6fe5a5755cbb7e9e85f3a3baac51a83306be90ac44a58cd90d34f38ac3a0d97eb96573d9ac77b4be2dd355a4901d9ac8c13eb53d12687b1eb8a620d9d71bc05a0d9eff8e5f04dc8bc0e5cb5f47debf2bb55d9015f055c325a4d0b6f0b2cea5563496a59c623cceff7c671543f7b91171b64b41af06efc9c4c7f1213897999e08b073fbc44bab5ada3ae937922fbdab5aac920db06ed6a10968edfc6e5e139e4bf2cfbe7099af0d28af99ac95f1f9909b9581501ca4a4850d08cb2fbffd0db182f2422f3f0c91d1860917b63c32911e2513faac476d003b057ac5c95bc2d70d70750ff3f5f4bfd9e10b25f248a35dcdfc31a618aca4892d7cf816fd7bd01fad57dd43d51f37526d4302144053225a97de35652eb8a6fb3ae51795c3fc4f61b4f89b3ca476cf54a37ae81b6a050b523a69300ebfe5b081a37ffe061ddab111d3880a853cc233873dc21bc85b29d3118513137e287b0831116499c3065d42f8b510ee9cd3b9199988e101b983b27567043accf0c297341d1cb742c23913b5b4f9ee3be49ae6e9a26e19b5858272597a0c8d36521d5cefbdbe91b45164311e88a2870afcbc1b1c74aa77149051b87429c168ff1a2c733580a35da4de44f88724296ab30b9a7babedbe8c662fb3e6cc133bc5d8939abade8dc1ae0e44ab000b100fefa222b61329c79a59685df659556a941c3b7f67d18baa0d362dfdc0e3597367365c391f12d04b4f4ac4f85916fea49681690aebacd6030bc21111fb1f7091baf447bf99bc3907792fc7486ddb65aafa0e5780aec78061adfab2b1b0641b916ab5bd02a474a58b5cbc9a1419d8fa61926cd7cdb181632087eec8582400bc357bd938610d43e5d55e9443ae491180cda527cc6bfbfa1d4a0b9066253790d21d404485029170196f0230a018dca7e7346f31a0c52ed876c0c64c2bce2fc1b75354c677873648bd0e3f4c338c829c8789017ba931898497842d98d5336b67e05a354ea409a4939ad19e8068039e970f45cfce1568251c3c0498504090da3b446024c75dbbadef130a55510482445205a984cda5bb86656039490255a8060083804049a44a69801a6526ba1caa362435afc219fe2363e906d2de1cd8bdc928deb85d6243d1673855757ff7348281be0385117f77d95fe81fc6bd6923fa7e0d57d7e92f092533024651d01c1b2c37897907043f8506eb3e3f5a487d687e863113cf892e2245d320fafee63b15fa4f133d08b82d5e366a42177c920ef985c81b338c72820b836a0a820047006c838a7188ffde195676804d4ee8fd48843fdd1883341045fe02359b87fe0583c9b9030227227e4d37642e6d80ecb28544a87b4e9f813f1079a77ffa808f3d01c6454443a49e747f547f8da9e30443136bf699858f3fa9308419e33e8356d7057166cc80027b47dd6a85837a010cbf056428043c88702a1f0852ea727f94dd82177287428401014782ff026d86446c2941875507084482c9372e010203030882836b082d58720576496fd05a7a380c15b1894869800699dc057b165a8879844c7748fa20170f446f0582827f110f290bfc080a1cb1110f0c15874d6e8977804f8204bf869d077e7c0979de8d67592ae1984b89b28617cb3e02030104328c4320f5872da6cd3d2f87894787e7bdcd3bb915289c989786c4a8a86a5a4970818591278afb6e459262730b45a89703880817776cb3f6a1ececad9c5cf174b42f36c9ef8bc4190d641e50ad1e19c9fe9aa20f2880eb1e0418613b2e92a39a89b4fc307d12553bda7ef6411aa1645019965de24d2e8e8c11138e4d3b0d84f87e0d0200809667360105f18274fd798501ae72277c490153aa5b461427a48137022fbee9df7b6d21b172223188d74703732a4cdf37be0d1b85d29b658f04e838c215974190c1fc1b04b1a881193b07959d86386749a20309c2fde3910f533ddd8c9e53d880ab29e718402bc4867b26cd8286aec663cb5d2be85103643f4700a3747e85150b3184882334b1357504b64cc9869a1e180e981aa26ce489ea7c8006599212f679dc1c16017b047ccc211006734a110c0b0e0624c1519949020178b4072bc1c40625448c018896b40d84169c040485728a099a9e42e90aef29cc066e10059110c1eeccff7b8145622a2189140323c00765ad36e30f2120f5c89016d7472c661b26dd65b90485aa14f52527b70846fd05a89345c1ba0b2002892844c596474de91038e69de96f8170a3f044444592ff744acd700228a431a2c51f60876aba11b4212b250f79a7786805b9a2364b910e0e056f4baf393be6833a3f17c5e5d32c48ae4c829c58820f7b5862130711dc36b622dc6607a52a973f9587d8795cd60d03bf68ff0fb43f8a922400022c38e3ed118897a3072e4853d13f08924a3836081d8504744d369b24fccffa3170a23b69c92a3e0a1638b3c4027b48424df81580dd7da19dde4b01340128b52ffd00085d0900a2460805e0e9bb8195281428de1fd5f7750414350c40218056ed363855a00a080500900480aaa8706b216d0630028318c37a11208cf138ed198047c2df90e999cd5c8f091d484ac31d27e8b600630728664bb32caa17771a6cee28638e62ad45a389b816d2a29c53d2318bec3530c187d5efbf41789424dac127fbcce76f7483da94005db0b008320134f4d7d960983bc5a630df09e7844df06ee07b6a1414e0418ea060fd56c4a76956246953e87a287012b35446b584355906d98a2151fb3326fd2dfa0c7512ba735f51ed14121a5240c94241fc82c7fb82c155104eba4df6a88deac3b07789103650ead0f1537cc7828d0bf7b9a9879c0017e2943c8a577fe490470327c4f17377bb4ffa4b9e5cc3d8c3fcc29bcb67080016141e5a165404fdded7bc5d74e3221cb0010002ebf318cade238ece7594ce5b0a61dc3f8c263ae36b45ea8102f0978619c206fa10a65f189fba7e2b51872a0a862762645d1d6542527895653a74dbf3ac9fcf1032cd3d5d1cd848b14c34ea38b5d8669d868f19f09d6e507bb1d52294d3368a6a73d14bf477420e2579c2fb921280094e1614fa90d74a7e3edabe0c5c584375468dd54c30b4988222c53b39c6da5428b2532b913c2932523ae025adec7e0ca8ee173af3aa3468db7e7e4f888e83e97543faa486882d709e0ca0b89438854e379c3e8ab61b750a5265881a79e8e4c45da1a438fa4eb6fbdd742c48b398807022fb6c524618bea61c6eae9ad81327a6f2d310661a1b2015b2c4b2847cc8c287b0373bf51fc68c96fa6bdef51b0eb4f9ad5c3b76729db515298f7bee3273a3c386464978c7c3d6afc4b2e3ba42bdb0d29edc41c328344b12fe429378b290c8a12800f8a62c5f04f3b451babc92849c720d1928ae95167283fd8933e6d4ba69017d3d91fbe84342e0a067440025343f161814766e86b0af16a5eb00b48a590f6eae02ecb6d3a5ca64d7f38610bc407717440dddcb747cffb8643a3c50370acb0273c650f1bb1c7b3e3a3d881e301f00a2939d20eda6484f6b005ea015f560ca944e2c214c946c3aeb33988e1f5859f44aa6eea7c486b374d46b20a203f9bc2d86e6e84431be8c23a828e6bc015414072eeba3f84329f32ce50614f598a07b6440cb0766cff8a4c610e658e3d0a452ce497d6ccea024c2c2559f46bfbbf8e10655368237b2faa69dab0b44842b5dbf6c745af461327b52fffc35e8f88615b8d5bbc71c5a343abe732a0c26090160d25db4c38dab717b5b2221cb42a0ac3ac484db7023c6e10e223c9d2bd829496edd488de954b850daf6a4b287e814b84422fcdfa05b9098740085745a986232d6321fdb9484a0961e4eaea724581fd2b02272ed3028f45efc40088cf8b1ea610e39786ef5906d443016703569ef6c27b50c62bdb2966fe02e172a96a6e2af4d263c86895824958a6926bc24e7f6e0b0a2144d767a6dbcd80da702257542ae136474f01a5c3e35b81e7a9bd6549eb7d3aab2ca2603f0d10b109fe720d0d944c4f50d50f446fb92a4384e1788d6178618dcda7c90eef2c26e86abfb5a0a022ba6740b30c87b5aef41eea7f1307da9d4400c23aadbb72137c40a34b58a9ca188a0054cb30ed262d25ebf92d040c07aea9a42abcc506c24a072aa6e5c2a0b797156c0246a736b3e64a13a16c917cc0a1c3ebd426ae680ae3a306abcef919ab1ea56e51286796bc8aafdc55af1f8f0858a4c5c32fc0ec8b08b24c9e3047e0f199903aef3033fccc72eb4092d5e883a59df3ca2dc186a5091e6a08cab76627e6ecb4c082674ee6fb924a2cf182aee032b89c01ed5db20a7e83df8c598cf52eaaf5d46546632a3b18cc5f6ef63f9b112c7fb8eb329e25430e4c564c0db7ba8eb4d545069be191b4853c470b6966c15d2544c771d47a688396fb87f9866829a53d667c0bbba21b26ddcdb1fee20886c4631134a385f1b155a29887615437af718812a14f05c02ccdca6041d45072eeb5c27becfcd4d5ea2d8610bd2f632d2f970b48ba27ebaac2a5cf3fe3ea3cce5d16ac3a7dfe352da848a587b105feb18834593ed90c00c3e76d2e5e69a31556264773d5ec9d306a1b0bc9221dd1e26ca62665f94a53119d4f40e4a6c0c078a001ea6ed67bcc41c698ea1c2242d4118c8961fb5b0d3114ad125bfba90c2b31d748b009b39af44e47799541674b15d4ad8d9735a5c95240a96acf7b60363b3fd4b6c899ea0e491f0af8bfa9c67ce64a09cf732a05282d642deead7a480fe255c91c138e5c95663029f7ffddf0e24eb582cd989794ac26307b5fb90cfa92a84fdf476c5d23dedd07c6e5b05d8bff1dda96be5d3e4955d55a18cb793f28d7d052334605e5fb294645b54c8654899d349102f40011ba40f5aa725e6260d6477476d4942abf21901460967eca2344d54a792a7ad10112fe89ce90d6684c9d2ad307f64ba86dbe3853d9a8856a29345f3daec160dfa568e8509f9196b8e33b8fe21580557581def534c012a99f542ef3391c6896681415c15aa8a74e52e984de24b24ede6bc714fc357d747adfdf03e11281f00fc2ed5c38e898e2571f6b38589e159b34af49a9aae5a9c2d468c30ea28a0d90cee3da96eca9681b16d0b7f45eadffd4aa75c7335d88ddc40ed23ad04aa1b22f540cef11497c95c300cab39c53a1500880dd5d7ece2c06064bcf9ef3124bef021f3949bcae3d8a84cfb101c4b32780473e336f6e643aa994580180be93d2e8a657a015c40f2fc7054df5003ef62082aad7eecae7086d6d8c58af3a4e69c3bd37b148fd29d08001a7dc66a2c14da0f858693ac318aadee591cd2d56a17cbc0a951f968da4889200f25ee1850d2817be0329bc754a101b07a410a43c5635f684c74c1524d9891c7d92bc145a0c49d96ec357ee47c9d46135937a339f5281e41a448911e12ea48ae38932a5fd18ecf27bff476dfa9917cb4b2971c6985980b69cf67362edb7a2056affb936d80a3d00e81bcfc5b2f95da3de4b7db75195f3dc28478d73542174e39560fd4c72f943f19dd50554711e8e41ebe3772e72a06756dea0cf8ae4d750db02f62407312dd1906cbdb7af63e714aebba1d5e16b5eff0acf7e46e60250193a3695d7c28c7e03e85babb4d8419bf8e6b947191952cedc937b455181cbe0ef82681f6d6d0fa0ac5202554541a0830bfeb49149209c8a4379d4558a3ef645f05d125addb71e6033db80bf03afdc4dbf2629f23cba8f74291375d101d7d1033a1c4b7d696c24e0f705603f58f71a836ddafe893abed5246cbd18289c047b2538ff5320a0995fa834ac99b5105257e9a2f31290480e01125093fa03bc65ce845b3a467b49907909feeda37eca8c2417d374bb1a664fa1e68596a85d705eea840553a8bfe17afb2ff25de01680fddab2e1f0fb7f072fabbb3f29fc623db1a19a51c426538bc8c017e88134861000d7c265a5354a46b51262450296fadf25f7a44ec65765cea4623701499235159adb216b4fa039a94b3224ebfd90f418fe54867146b97a669ad54032d5622836440e8510219fb0f453af90ba2dcb9cab9bb0bdecebbc90fc5b497cfdab932b92a20bf2f3ed6311d301fb833112c5a542c2b1e1a262322542e29312034166c1c382b05283f2608ddf0cbabd6dcb1a652afa49799a6b7a1e4a10faaa888b1a3a798a5b09d850614a2e9a1a988eb4391339989aca18885a682eaa2910e87b28e77afb0b3aab706b4ac9db0a98db4ed168ebcce6b07691792a6eeb297166e318a75c59088ab64a3844ab19282ab91c5c3e5a0b6bdf8909e56a3aba69aadb09b8abfb3feadaeb6b4b5b7bcb8b2b8f3b5dac19aabb19c8398b0a729a24ea98c7fa4aa938f218fe3b4869a8dbc9a668fa0a09eee9e8b9e419176548d8e8c9a9e338797b2b68982adba97b23babc7ac8b96a588b0b27d01b9b8b2beb9aeb9bf03bf97b0b48ea0a69693de85aaa1a9bb9597a59b93e199c4bba002888cac6823234b160d170d468fa18c9aa4abc0ada514b7b8b2bda5bbe9dab5d79faabbac96e097839e80af92a4aca831aaa197949a76a3998f79cb00a67880886f90959b819fb2c2c50b7710899a95ac850e9696e7a1a2baabbcc5a1b8edab9e7ba2a9800a968695888f35a7aea8a0e392939aa3a7ea86a4a79a6a86618d678491cd1a62272635924817490a2b5740fc0b090f1a2569944200d36a823269303c21eedadceaf3f8f4fa11edd3d1f02b04798d65593a5d1743454981635490878f8a7ca2279a919c927b88798c9c9195898de1c8360e808a94c78165589f8944506e727cf97d8b8b2158ab8c81817292894722ec88899e85f592814d90877a98871b816c9e9c8ca0838968907e7b7c6686e48b9f9b867b7b78b84899e7a7ec9c9d835ad3a595a88d8d604e883b982d18030e474f714ea481339584785693d563a27fa788aca3988b9a997e99c47e6ea38ba59a9c9b9b869c02a98c915d569c926b9d9a881974438972623f3e318594818b8e8de4859d92849a9f84ab9aae89d29a9a8f898d83977e8d9b83c8766b3c67859892742d845c5b765c6351675f8e229383775d91795f3f816a87805145c97171361f530384846d4d4d874120484a9e919076a097465ac0368577556a9d8f9e8ff56246470bdaf40b951d162f8d8088824e74fd7e0bd6d0ddd43ba430345d4d3461353422ff03f4703a80566e480e5c015530880cd2cef167878358e49190815674819591768b90423e38c8862fe38a1019ff0d1f190c5f65187d377b1a84708961220f26f3ef567b602723fe3e3600148494f991a47ba18f588ab0188ca586874b89a81b7a8b4b94974f91809995988f82e5a5949f888b8ca18da79097c7e8b7b985a53486a096938d3c9d9eea7598a39e9b905990a3968c348e38466c835b529b7282927e789cf264948f9684a37f80a29f9aad98e889a4b36ec4958e628f12879a9694c85d3c3339413f8e5e4b3d904b0b4890938b982ea58be279608d915a408fa1e7b19b91e29e8286625d9a9ee914888c29e52b090666020c0efd82a78965287d6a236c7f369959a98da2909561cba998f49096af9aa9a390e699849dedbc9a4f87da699d7e7ba301d60028b52ffd00086d060012480c09c02507d4991a8077025555a51d3b15984e534cbebc1b94c5599b4aaabcaeb48f32bbb4f2ea04ef7bf8e088030800424470a8f0f2646333208321aa0e1018a41015d1b401c025a9adfc217a61d3b980fcbaf54beed7597e41c89559eaaaac77d48ecc61ca328dc098eaf2285e00c92e4204a74e394c5e791fb60c962204726714f45ad24a90929ba91734efe9264e398f381add894292ea3981a67ba07809947b881bfcc8f9906eb284255e0d5a81d303b2dfbe4a6b5d044a8a2c0cd51f210a6e3adff5ef73c23f00ca
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	2	0	20779	\\x05003c000000000000003f0000004c04000000000000000000000000803f010000000080000000000000001300000000000000874d00402c370e43020000000080000000000000001300000000000000ad7e8341120d71440300000000460000000000000009000000000000008052c04d80ddc04d07000000001d0000000000000006000000000000000000000000000000000000000000803f40000000000000000000000000000000000000000002000200000000000000000000000000000000000400040000000000000000012d0028b52ffd0000250100c0152210908442040400040008000400400040000000000000051000354e62067b5c1c01023687d835ff966f321048a3477504d6b3a2052c02224d245ccaf708fc68cb03822a4df12baf0237021c00bcd1e8031322405d748695a6b6cae5010e0240404141414242424242424242424242424343012d0028b52ffd0000250100c0604884444442040400040008000400400040000000000000051000354e62067b5c1c0102ad6ad9c08b7efc73df986413e7fffa2fd01e12027e4c83df49ef6e8f93f7ccfdd4ef0a56a7aa0d0283152b3d516a8195a8bbcee3fc0c1b2b425a710241434343434343434343434343444444444444012b0028b52ffd0000150100a0800000000080000400100001000100040004001007100033aef18c2b86f1c4b111028080000080800080800252d2d6d6d8dbdddddd00c0004d01120028b52ffd00004d000010fc000100050a60010000000000000000	\\x0000000000011a0028b52ffd00088d00002880800080000410000bab6417a7d8a436011a0028b52ffd00088d0000283f3f003f000410000bab6417a7d8a436
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	3	0	20779	\\x0600000000002c000000000000000600000000000000fd0e1f3c1846b03c01000000001d00000000000000060000000000000000000000000000000200000000250000000000000003000000000000008019523e98bf293f0400000000230000000000000019000000000000000000000000000000060000000032000000000000000800000000000000bb552d40355ac740070000000039000000000000000800000000000000aeb6243fea4c104001120028b52ffd00004d000010fc000100050a60010237186e3cfd9e02f846cdc20e200234b080a91fa8003c01120028b52ffd00004d000010fc000100050a6001000000000000000001120028b52ffd00004d00001054000100050a6001025498800247bf1902142952023f3f3e01180028b52ffd00007d0000387fffff80000800020082083f0ab4000000000000000001120028b52ffd00004d000010ff000100050a6001021c77a1c2383598bb025b7097a36d5a1f55023cbf6c894fc76f2d004001120028b52ffd00004d000010ff000100050a600102c0c6621e5fea8bae020ff09530244c82b602a3c58aeb4d106224023f3f3f3f3f403f3f	\\x
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	4	0	20779	\\x08000000000039000000000000000800000000000000bb94d43e7e50b53f010000000039000000000000000800000000000000b936d73e7ea5a63f020000000032000000000000000800000000000000401311406132f74003000000003900000000000000080000000000000000c6083ad02f5440040000000023000000000000000300000000000000f5e88e3f5abfd83f0500000000230000000000000003000000000000006b941c3f41fc503f060000000025000000000000000300000000000000e4fded3ea42c603f0700000000250000000000000003000000000000005621c63e57f7233f01120028b52ffd00004d000010ff000100050a600102930a197e22d5bbb5020467f8505fa394bc02319983b503a0d412023f3f3f3f3f3f3e3f01120028b52ffd00004d000010ff000100050a600102db4cd67e2837b960026e1d9aa5a28436be02339043a6fb8dd7e7023f3f3f3f3e3f3e3e01120028b52ffd00004d000010ff000100050a60010221d1756181fc40830257ebb132b75613870272efc0f739d21148004001120028b52ffd00004d000010ff000100050a600102a66f26d02c1000d602eca5582fef99c69102be22cd54830a0865023f403f403f403a3e01120028b52ffd00004d000010e0000100050a600102f55aee02e8bf96028ed8c8003f01120028b52ffd00004d000010e0000100050a600102ec416b0221fc940232501c003f01120028b52ffd00004d000010e0000100050a600102e4a42702fd2c8402ed6034023e3f3f01120028b52ffd00004d000010e0000100050a60010256575e0221f79802c623ec023e3f3e	\\x
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	5	0	20779	\\x080000000000250000000000000003000000000000000e4efe3fb7638b40010000000025000000000000000300000000000000a6ecbe3f6fa5224002000000001d000000000000000300000000000000000000000000000003000000001d000000000000000300000000000000000000000000000004000000001d000000000000000300000000000000000000000000000005000000001d000000000000000300000000000000000000000000000006000000001d000000000000000300000000000000000000000000000007000000001d000000000000000300000000000000000000000000000001120028b52ffd00004d000010e0000100050a6001020eb707024e630f02fe8b72023f404001120028b52ffd00004d000010e0000100050a600102a66f2602eca55802be22cd023f403f01120028b52ffd00004d000010e0000100050a6001000000000000000001120028b52ffd00004d000010e0000100050a6001000000000000000001120028b52ffd00004d000010e0000100050a6001000000000000000001120028b52ffd00004d000010e0000100050a6001000000000000000001120028b52ffd00004d000010e0000100050a6001000000000000000001120028b52ffd00004d000010e0000100050a60010000000000000000	\\x
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	6	0	20779	\\x0600000000001d000000000000000300000000000000000000000000000001000000001d000000000000000300000000000000000000000000000002000000001d000000000000000300000000000000000000000000000003000000001d000000000000000300000000000000000000000000000004000000001d000000000000000300000000000000000000000000000005000000001d000000000000000300000000000000000000000000000001120028b52ffd00004d000010e0000100050a6001000000000000000001120028b52ffd00004d000010e0000100050a6001000000000000000001120028b52ffd00004d000010e0000100050a6001000000000000000001120028b52ffd00004d000010e0000100050a6001000000000000000001120028b52ffd00004d000010e0000100050a6001000000000000000001120028b52ffd00004d000010e0000100050a60010000000000000000	\\x
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	9	0	20779	\\x0800000000002c000000000000000600000000000000f6e614404255154001000000002c000000000000000600000000000000673b3d3f4263403f02000000002c00000000000000060000000000000047de7f40582d80400300000000310000000000000006000000000000009cace53bd467183d04000000002c000000000000000600000000000000038f223fcf2e323f050000000031000000000000000600000000000000d031003c16ae533d06000000001d000000000000000600000000000000000000000000000007000000001d000000000000000600000000000000000000000000000001120028b52ffd00004d000010fc000100050a600102f6deef80b04202e6050d131a5502141515151515004001120028b52ffd00004d000010fc000100050a600102425bfb6ac06702638a6681583b02403f3f3f3f3d003f01120028b52ffd00004d000010fc000100050a600102473bd95b005802dee1ff000f2d027f7f7f808080004001120028b52ffd00004d000010fc000100050a6001029cfab83dd46602aca54cc5670702e58bba0c1812023b3c3c3d3d3d01120028b52ffd00004d000010fc000100050a60010203611f3845cf028ff8a7f4e52e02222327282b32003f01120028b52ffd00004d000010fc000100050a60010269d06a08166a022431a576aef4020800062953f5023d3c3c3d3d3c01120028b52ffd00004d000010fc000100050a6001000000000000000001120028b52ffd00004d000010fc000100050a60010000000000000000	\\x
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	10	0	20779	\\x0800000000001d000000000000000600000000000000000000000000000001000000001d000000000000000600000000000000000000000000000002000000001d000000000000000600000000000000000000000000000003000000001d000000000000000600000000000000000000000000000004000000002c000000000000000600000000000000bf374f3cd80ddb3c05000000002c000000000000000600000000000000b1812f3c181df73c060000000031000000000000000600000000000000e027a83a4415683b07000000002d000000000000000500000000000000856f123e449ccd3f01120028b52ffd00004d000010fc000100050a6001000000000000000001120028b52ffd00004d000010fc000100050a6001000000000000000001120028b52ffd00004d000010fc000100050a6001000000000000000001120028b52ffd00004d000010fc000100050a6001000000000000000001120028b52ffd00004d000010fc000100050a600102bff8e20120d80237a40e4bf80d024fd2829763db003c01120028b52ffd00004d000010fc000100050a600102f49e5308b1180235911552811d028ba86dc92ff7003c01120028b52ffd00004d000010fc000100050a60010200d83f44e0820295740015278602e2442968a84d023a3b3b3b3a3b01120028b52ffd00004d0000107c000100050a600102446e5c8548029c7d8e6f2202cde5121298023f3e3f3e3e	\\x
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	11	0	20779	\\x0800000000002c0000000000000006000000000000006e18343df5cff13d010000000031000000000000000600000000000000af1d7f3eb118814002000000001d000000000000000600000000000000000000000000000003000000001d000000000000000600000000000000000000000000000004000000001d000000000000000600000000000000000000000000000005000000001d000000000000000600000000000000000000000000000006000000001d000000000000000600000000000000000000000000000007000000001d000000000000000600000000000000000000000000000001120028b52ffd00004d000010fc000100050a60010205f5452f6e8902cfcf8a93187b026ff1c0f134c8003d01120028b52ffd00004d000010fc000100050a6001026f758cb1af920298bc38181d8c029e4303817fd6023e3f40403e3e01120028b52ffd00004d000010fc000100050a6001000000000000000001120028b52ffd00004d000010fc000100050a6001000000000000000001120028b52ffd00004d000010fc000100050a6001000000000000000001120028b52ffd00004d000010fc000100050a6001000000000000000001120028b52ffd00004d000010fc000100050a6001000000000000000001120028b52ffd00004d000010fc000100050a60010000000000000000	\\x
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	12	0	20779	\\x060000000000230000000000000003000000000000005e82d43ef046fa3e0100000000250000000000000003000000000000002f8598bda746563f0200000000250000000000000003000000000000001eb9173ed492383f030000000025000000000000000300000000000000331eaabe930d3a3f040000000025000000000000000300000000000000d67ebc3d6dfb343f050000000025000000000000000300000000000000000080bf0000803f01120028b52ffd00004d00001054000100050a6001025e42f002829a4602d4dcfa003e01120028b52ffd00004d00001054000100050a60010274a72f02b2468502355698023f3fbd01120028b52ffd00004d00001054000100050a60010279d41e027f92b902373817023f3f3e01120028b52ffd00004d00001054000100050a60010293a833020dd11e023a1caa023f3fbe01120028b52ffd00004d00001054000100050a600102a16dd6021bfb7e021d34bc023f3f3d01120028b52ffd00004d00001054000100050a60010200ff000200ff0002807f80023f3fbf	\\x
\.


--
-- Data for Name: columns_20261123; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.columns_20261123 (run, stream, part, first_step, day, head, data) FROM stdin;
\.


--
-- Data for Name: columns_20261124; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.columns_20261124 (run, stream, part, first_step, day, head, data) FROM stdin;
\.


--
-- Data for Name: columns_20261125; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.columns_20261125 (run, stream, part, first_step, day, head, data) FROM stdin;
\.


--
-- Data for Name: columns_rest; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.columns_rest (run, stream, part, first_step, day, head, data) FROM stdin;
\.


--
-- Data for Name: deleted; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.deleted (run, at, project) FROM stdin;
\.


--
-- Data for Name: events_20261121; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.events_20261121 (run, stream, number, day, name, step, "time", data) FROM stdin;
\.


--
-- Data for Name: events_20261122; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.events_20261122 (run, stream, number, day, name, step, "time", data) FROM stdin;
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	0	20779	scaler.seen	0	1795368169574582321	{"enabled":true,"device":"cpu","scale":1024.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	1	20779	weights.census	0	1795368169574582321	{"parameters":{"float32":193},"trainable":{"float32":193},"state":{},"masters":false,"updates":null}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	2	20779	gradient.spectrum	0	1795368169574582321	{"lowest":-40,"counts":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1,4,2,5,11,11,30,42,33,31,15,8,0,0,0,0,0,0,0,0],"scale":1024.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	3	20779	scaler.growth	49	1795368170721519853	{"from":1024.0,"to":2048.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	4	20779	scaler.growth	99	1795368171299325707	{"from":2048.0,"to":4096.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	5	20779	scaler.growth	149	1795368171840587318	{"from":4096.0,"to":8192.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	6	20779	scaler.growth	199	1795368172234350862	{"from":8192.0,"to":16384.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	7	20779	scaler.growth	249	1795368172663173947	{"from":16384.0,"to":32768.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	8	20779	scaler.growth	299	1795368173162989890	{"from":32768.0,"to":65536.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	9	20779	scaler.growth	349	1795368173770035859	{"from":65536.0,"to":131072.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	10	20779	scaler.growth	399	1795368174233017469	{"from":131072.0,"to":262144.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	11	20779	scaler.growth	449	1795368174620733749	{"from":262144.0,"to":524288.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	12	20779	scaler.growth	499	1795368174831055154	{"from":524288.0,"to":1048576.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	13	20779	scaler.growth	549	1795368175165537110	{"from":1048576.0,"to":2097152.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	14	20779	scaler.growth	599	1795368175535670696	{"from":2097152.0,"to":4194304.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	15	20779	scaler.growth	649	1795368175892835748	{"from":4194304.0,"to":8388608.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	16	20779	scaler.growth	699	1795368176288699094	{"from":8388608.0,"to":16777216.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	17	20779	scaler.growth	749	1795368176573931125	{"from":16777216.0,"to":33554432.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	18	20779	scaler.growth	799	1795368176896368457	{"from":33554432.0,"to":67108864.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	19	20779	scaler.growth	849	1795368177181189088	{"from":67108864.0,"to":134217728.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	20	20779	scaler.growth	899	1795368177446433918	{"from":134217728.0,"to":268435456.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	21	20779	scaler.growth	949	1795368177823112757	{"from":268435456.0,"to":536870912.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	22	20779	scaler.growth	999	1795368178189009813	{"from":536870912.0,"to":1073741824.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	23	20779	scaler.growth	1049	1795368178528086837	{"from":1073741824.0,"to":2147483648.0}
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	24	20779	scaler.growth	1099	1795368178916863768	{"from":2147483648.0,"to":4294967296.0}
06895145-bce5-4da2-86c5-32649224320c	1008d51ad6474029831b97ee67af0514	0	20779	scaler.seen	0	1795368188643508957	{"enabled":true,"device":"cpu","scale":1024.0}
06895145-bce5-4da2-86c5-32649224320c	1008d51ad6474029831b97ee67af0514	1	20779	weights.census	0	1795368188643508957	{"parameters":{"float32":193},"trainable":{"float32":193},"state":{},"masters":false,"updates":null}
06895145-bce5-4da2-86c5-32649224320c	1008d51ad6474029831b97ee67af0514	2	20779	gradient.spectrum	0	1795368188643508957	{"lowest":-40,"counts":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1,4,2,5,11,11,30,42,33,31,15,8,0,0,0,0,0,0,0,0],"scale":1024.0}
06895145-bce5-4da2-86c5-32649224320c	1008d51ad6474029831b97ee67af0514	3	20779	scaler.growth	49	1795368189553270633	{"from":1024.0,"to":2048.0}
06895145-bce5-4da2-86c5-32649224320c	1008d51ad6474029831b97ee67af0514	4	20779	scaler.growth	99	1795368190112267704	{"from":2048.0,"to":4096.0}
06895145-bce5-4da2-86c5-32649224320c	1008d51ad6474029831b97ee67af0514	5	20779	scaler.growth	149	1795368190828628447	{"from":4096.0,"to":8192.0}
06895145-bce5-4da2-86c5-32649224320c	1008d51ad6474029831b97ee67af0514	6	20779	scaler.growth	199	1795368191372575199	{"from":8192.0,"to":16384.0}
06895145-bce5-4da2-86c5-32649224320c	1008d51ad6474029831b97ee67af0514	7	20779	scaler.growth	249	1795368191764342744	{"from":16384.0,"to":32768.0}
06895145-bce5-4da2-86c5-32649224320c	1008d51ad6474029831b97ee67af0514	8	20779	scaler.growth	299	1795368192128716112	{"from":32768.0,"to":65536.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	0	20779	scaler.seen	0	1795368204440603341	{"enabled":true,"device":"cpu","scale":1024.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	1	20779	weights.census	0	1795368204440603341	{"parameters":{"float32":193},"trainable":{"float32":193},"state":{},"masters":false,"updates":null}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	2	20779	gradient.spectrum	0	1795368204440603341	{"lowest":-40,"counts":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1,4,2,5,11,11,30,42,33,31,15,8,0,0,0,0,0,0,0,0],"scale":1024.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	3	20779	scaler.growth	49	1795368204904221365	{"from":1024.0,"to":2048.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	4	20779	gradient.nonfinite	60	1795368204945448179	{"tensors":[{"tensor":"0.weight","nans":128,"infs":0},{"tensor":"0.bias","nans":16,"infs":0},{"tensor":"1.weight","nans":16,"infs":0},{"tensor":"1.bias","nans":16,"infs":0},{"tensor":"3.weight","nans":16,"infs":0},{"tensor":"3.bias","nans":1,"infs":0}],"count":6,"last":"3.bias","finite_after":0,"finite":0,"scaled":true}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	5	20779	step.skipped	60	1795368204945448179	{"scale":2048.0,"consecutive":1}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	6	20779	scaler.backoff	60	1795368204945448179	{"from":2048.0,"to":1024.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	7	20779	values.logged	60	1795368204946485336	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	8	20779	gradient.nonfinite	61	1795368204969202501	{"tensors":[{"tensor":"0.weight","nans":128,"infs":0},{"tensor":"0.bias","nans":16,"infs":0},{"tensor":"1.weight","nans":16,"infs":0},{"tensor":"1.bias","nans":16,"infs":0},{"tensor":"3.weight","nans":16,"infs":0},{"tensor":"3.bias","nans":1,"infs":0}],"count":6,"last":"3.bias","finite_after":0,"finite":0,"scaled":true}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	9	20779	step.skipped	61	1795368204969202501	{"scale":1024.0,"consecutive":2}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	10	20779	scaler.backoff	61	1795368204969202501	{"from":1024.0,"to":512.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	11	20779	origin.found	61	1795368204969202501	{"kind":"forward","module":"","op":"loss","direction":"forward","absmax":4.411621570587158,"last":[{"module":"0","absmax":2.018341064453125},{"module":"1","absmax":3.5619797706604004},{"module":"2","absmax":3.5619797706604004},{"module":"3","absmax":4.411621570587158},{"module":"","absmax":4.411621570587158}],"confidence":"hooks","since":1}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	12	20779	values.logged	61	1795368204974824165	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	13	20779	gradient.nonfinite	62	1795368204983024891	{"tensors":[{"tensor":"0.weight","nans":128,"infs":0},{"tensor":"0.bias","nans":16,"infs":0},{"tensor":"1.weight","nans":14,"infs":2},{"tensor":"1.bias","nans":14,"infs":2},{"tensor":"3.weight","nans":16,"infs":0},{"tensor":"3.bias","nans":1,"infs":0}],"count":6,"last":"3.bias","finite_after":0,"finite":0,"scaled":true}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	14	20779	step.skipped	62	1795368204983024891	{"scale":512.0,"consecutive":3}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	15	20779	scaler.backoff	62	1795368204983024891	{"from":512.0,"to":256.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	16	20779	values.logged	62	1795368204993030934	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	17	20779	gradient.nonfinite	63	1795368205005762347	{"tensors":[{"tensor":"0.weight","nans":128,"infs":0},{"tensor":"0.bias","nans":16,"infs":0},{"tensor":"1.weight","nans":16,"infs":0},{"tensor":"1.bias","nans":16,"infs":0},{"tensor":"3.weight","nans":16,"infs":0},{"tensor":"3.bias","nans":1,"infs":0}],"count":6,"last":"3.bias","finite_after":0,"finite":0,"scaled":true}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	18	20779	step.skipped	63	1795368205005762347	{"scale":256.0,"consecutive":4}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	19	20779	scaler.backoff	63	1795368205005762347	{"from":256.0,"to":128.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	20	20779	values.logged	63	1795368205006623774	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	21	20779	gradient.nonfinite	64	1795368205013849625	{"tensors":[{"tensor":"0.weight","nans":128,"infs":0},{"tensor":"0.bias","nans":16,"infs":0},{"tensor":"1.weight","nans":15,"infs":1},{"tensor":"1.bias","nans":15,"infs":1},{"tensor":"3.weight","nans":16,"infs":0},{"tensor":"3.bias","nans":1,"infs":0}],"count":6,"last":"3.bias","finite_after":0,"finite":0,"scaled":true}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	22	20779	step.skipped	64	1795368205013849625	{"scale":128.0,"consecutive":5}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	23	20779	scaler.backoff	64	1795368205013849625	{"from":128.0,"to":64.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	24	20779	values.logged	64	1795368205014678514	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	25	20779	gradient.nonfinite	65	1795368205038951005	{"tensors":[{"tensor":"0.weight","nans":128,"infs":0},{"tensor":"0.bias","nans":16,"infs":0},{"tensor":"1.weight","nans":15,"infs":1},{"tensor":"1.bias","nans":15,"infs":1},{"tensor":"3.weight","nans":16,"infs":0},{"tensor":"3.bias","nans":1,"infs":0}],"count":6,"last":"3.bias","finite_after":0,"finite":0,"scaled":true}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	26	20779	step.skipped	65	1795368205038951005	{"scale":64.0,"consecutive":6}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	27	20779	scaler.backoff	65	1795368205038951005	{"from":64.0,"to":32.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	28	20779	values.logged	65	1795368205043698032	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	29	20779	gradient.nonfinite	66	1795368205046301601	{"tensors":[{"tensor":"0.weight","nans":128,"infs":0},{"tensor":"0.bias","nans":16,"infs":0},{"tensor":"1.weight","nans":16,"infs":0},{"tensor":"1.bias","nans":16,"infs":0},{"tensor":"3.weight","nans":16,"infs":0},{"tensor":"3.bias","nans":1,"infs":0}],"count":6,"last":"3.bias","finite_after":0,"finite":0,"scaled":true}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	30	20779	step.skipped	66	1795368205046301601	{"scale":32.0,"consecutive":7}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	31	20779	scaler.backoff	66	1795368205046301601	{"from":32.0,"to":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	32	20779	values.logged	66	1795368205046756205	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	33	20779	gradient.nonfinite	67	1795368205061848527	{"tensors":[{"tensor":"0.weight","nans":128,"infs":0},{"tensor":"0.bias","nans":16,"infs":0},{"tensor":"1.weight","nans":13,"infs":3},{"tensor":"1.bias","nans":14,"infs":2},{"tensor":"3.weight","nans":16,"infs":0},{"tensor":"3.bias","nans":1,"infs":0}],"count":6,"last":"3.bias","finite_after":0,"finite":0,"scaled":true}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	34	20779	step.skipped	67	1795368205061848527	{"scale":16.0,"consecutive":8}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	35	20779	scaler.backoff	67	1795368205061848527	{"from":16.0,"to":8.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	36	20779	values.logged	67	1795368205062441907	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	37	20779	gradient.nonfinite	68	1795368205075185808	{"tensors":[{"tensor":"0.weight","nans":128,"infs":0},{"tensor":"0.bias","nans":16,"infs":0},{"tensor":"1.weight","nans":16,"infs":0},{"tensor":"1.bias","nans":16,"infs":0},{"tensor":"3.weight","nans":16,"infs":0},{"tensor":"3.bias","nans":1,"infs":0}],"count":6,"last":"3.bias","finite_after":0,"finite":0,"scaled":true}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	38	20779	step.skipped	68	1795368205075185808	{"scale":8.0,"consecutive":9}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	39	20779	scaler.backoff	68	1795368205075185808	{"from":8.0,"to":4.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	40	20779	values.logged	68	1795368205079941237	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	41	20779	step.skipped	69	1795368205085617171	{"scale":4.0,"consecutive":10}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	42	20779	scaler.backoff	69	1795368205085617171	{"from":4.0,"to":2.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	43	20779	values.logged	69	1795368205091859585	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	44	20779	step.skipped	70	1795368205094597574	{"scale":2.0,"consecutive":11}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	45	20779	scaler.backoff	70	1795368205094597574	{"from":2.0,"to":1.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	46	20779	values.logged	70	1795368205094961042	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	47	20779	step.skipped	71	1795368205101002538	{"scale":1.0,"consecutive":12}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	48	20779	scaler.backoff	71	1795368205101002538	{"from":1.0,"to":0.5}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	49	20779	values.logged	71	1795368205101346318	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	50	20779	step.skipped	72	1795368205107013749	{"scale":0.5,"consecutive":13}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	51	20779	scaler.backoff	72	1795368205107013749	{"from":0.5,"to":0.25}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	52	20779	values.logged	72	1795368205115680186	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	53	20779	step.skipped	73	1795368205121096124	{"scale":0.25,"consecutive":14}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	54	20779	scaler.backoff	73	1795368205121096124	{"from":0.25,"to":0.125}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	55	20779	values.logged	73	1795368205121469197	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	56	20779	step.skipped	74	1795368205122669276	{"scale":0.125,"consecutive":15}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	57	20779	scaler.backoff	74	1795368205122669276	{"from":0.125,"to":0.0625}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	58	20779	values.logged	74	1795368205128202418	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	59	20779	step.skipped	75	1795368205130167061	{"scale":0.0625,"consecutive":16}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	60	20779	scaler.backoff	75	1795368205130167061	{"from":0.0625,"to":0.03125}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	61	20779	values.logged	75	1795368205130479754	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	62	20779	step.skipped	76	1795368205137029524	{"scale":0.03125,"consecutive":17}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	63	20779	scaler.backoff	76	1795368205137029524	{"from":0.03125,"to":0.015625}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	64	20779	values.logged	76	1795368205137405871	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	65	20779	step.skipped	77	1795368205142650456	{"scale":0.015625,"consecutive":18}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	66	20779	scaler.backoff	77	1795368205142650456	{"from":0.015625,"to":0.0078125}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	67	20779	values.logged	77	1795368205143026794	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	68	20779	step.skipped	78	1795368205152452376	{"scale":0.0078125,"consecutive":19}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	69	20779	scaler.backoff	78	1795368205152452376	{"from":0.0078125,"to":0.00390625}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	70	20779	values.logged	78	1795368205152810337	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	71	20779	step.skipped	79	1795368205156529360	{"scale":0.00390625,"consecutive":20}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	72	20779	scaler.backoff	79	1795368205156529360	{"from":0.00390625,"to":0.001953125}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	73	20779	values.logged	79	1795368205157302205	{"samples":16.0,"val_loss":"Infinity"}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	74	20779	step.skipped	80	1795368205164818768	{"scale":0.001953125,"consecutive":21}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	75	20779	scaler.backoff	80	1795368205164818768	{"from":0.001953125,"to":0.0009765625}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	76	20779	values.logged	80	1795368205165191730	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	77	20779	step.skipped	81	1795368205168669856	{"scale":0.0009765625,"consecutive":22}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	78	20779	scaler.backoff	81	1795368205168669856	{"from":0.0009765625,"to":0.00048828125}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	79	20779	values.logged	81	1795368205168977893	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	80	20779	step.skipped	82	1795368205172172028	{"scale":0.00048828125,"consecutive":23}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	81	20779	scaler.backoff	82	1795368205172172028	{"from":0.00048828125,"to":0.000244140625}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	82	20779	values.logged	82	1795368205172475037	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	83	20779	step.skipped	83	1795368205179802669	{"scale":0.000244140625,"consecutive":24}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	84	20779	scaler.backoff	83	1795368205179802669	{"from":0.000244140625,"to":0.0001220703125}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	85	20779	values.logged	83	1795368205180169954	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	86	20779	step.skipped	84	1795368205192974835	{"scale":0.0001220703125,"consecutive":25}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	87	20779	scaler.backoff	84	1795368205192974835	{"from":0.0001220703125,"to":0.00006103515625}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	88	20779	values.logged	84	1795368205193338605	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	89	20779	step.skipped	85	1795368205196627240	{"scale":0.00006103515625,"consecutive":26}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	90	20779	scaler.backoff	85	1795368205196627240	{"from":0.00006103515625,"to":0.000030517578125}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	91	20779	values.logged	85	1795368205196981094	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	92	20779	step.skipped	86	1795368205202471152	{"scale":0.000030517578125,"consecutive":27}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	93	20779	scaler.backoff	86	1795368205202471152	{"from":0.000030517578125,"to":0.0000152587890625}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	94	20779	values.logged	86	1795368205202815002	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	95	20779	step.skipped	87	1795368205212412820	{"scale":0.0000152587890625,"consecutive":28}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	96	20779	scaler.backoff	87	1795368205212412820	{"from":0.0000152587890625,"to":7.62939453125e-6}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	97	20779	values.logged	87	1795368205212803339	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	98	20779	step.skipped	88	1795368205223121354	{"scale":7.62939453125e-6,"consecutive":29}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	99	20779	scaler.backoff	88	1795368205223121354	{"from":7.62939453125e-6,"to":3.814697265625e-6}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	100	20779	values.logged	88	1795368205227661193	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	101	20779	step.skipped	89	1795368205230789260	{"scale":3.814697265625e-6,"consecutive":30}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	102	20779	scaler.backoff	89	1795368205230789260	{"from":3.814697265625e-6,"to":1.9073486328125e-6}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	103	20779	values.logged	89	1795368205237320362	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	104	20779	step.skipped	90	1795368205241055539	{"scale":1.9073486328125e-6,"consecutive":31}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	105	20779	scaler.backoff	90	1795368205241055539	{"from":1.9073486328125e-6,"to":9.5367431640625e-7}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	106	20779	values.logged	90	1795368205241425838	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	107	20779	step.skipped	91	1795368205244743896	{"scale":9.5367431640625e-7,"consecutive":32}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	108	20779	scaler.backoff	91	1795368205244743896	{"from":9.5367431640625e-7,"to":4.76837158203125e-7}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	109	20779	values.logged	91	1795368205245086795	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	110	20779	step.skipped	92	1795368205257237056	{"scale":4.76837158203125e-7,"consecutive":33}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	111	20779	scaler.backoff	92	1795368205257237056	{"from":4.76837158203125e-7,"to":2.384185791015625e-7}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	112	20779	values.logged	92	1795368205257643338	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	113	20779	step.skipped	93	1795368205264314637	{"scale":2.384185791015625e-7,"consecutive":34}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	114	20779	scaler.backoff	93	1795368205264314637	{"from":2.384185791015625e-7,"to":1.1920928955078125e-7}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	115	20779	values.logged	93	1795368205264684686	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	116	20779	step.skipped	94	1795368205268840296	{"scale":1.1920928955078125e-7,"consecutive":35}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	117	20779	scaler.backoff	94	1795368205268840296	{"from":1.1920928955078125e-7,"to":5.960464477539063e-8}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	118	20779	values.logged	94	1795368205269203825	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	119	20779	step.skipped	95	1795368205278469721	{"scale":5.960464477539063e-8,"consecutive":36}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	120	20779	scaler.backoff	95	1795368205278469721	{"from":5.960464477539063e-8,"to":2.9802322387695312e-8}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	121	20779	values.logged	95	1795368205278857515	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	122	20779	step.skipped	96	1795368205285233577	{"scale":2.9802322387695312e-8,"consecutive":37}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	123	20779	scaler.backoff	96	1795368205285233577	{"from":2.9802322387695312e-8,"to":1.4901161193847656e-8}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	124	20779	values.logged	96	1795368205285635413	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	125	20779	step.skipped	97	1795368205297298251	{"scale":1.4901161193847656e-8,"consecutive":38}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	126	20779	scaler.backoff	97	1795368205297298251	{"from":1.4901161193847656e-8,"to":7.450580596923828e-9}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	127	20779	values.logged	97	1795368205297706937	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	128	20779	step.skipped	98	1795368205304969824	{"scale":7.450580596923828e-9,"consecutive":39}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	129	20779	scaler.backoff	98	1795368205304969824	{"from":7.450580596923828e-9,"to":3.725290298461914e-9}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	130	20779	values.logged	98	1795368205305351820	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	131	20779	step.skipped	99	1795368205310288738	{"scale":3.725290298461914e-9,"consecutive":40}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	132	20779	scaler.backoff	99	1795368205310288738	{"from":3.725290298461914e-9,"to":1.862645149230957e-9}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	133	20779	values.logged	99	1795368205310728079	{"samples":16.0,"val_loss":"Infinity"}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	134	20779	step.skipped	100	1795368205325259861	{"scale":1.862645149230957e-9,"consecutive":41}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	135	20779	scaler.backoff	100	1795368205325259861	{"from":1.862645149230957e-9,"to":9.313225746154785e-10}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	136	20779	values.logged	100	1795368205325676068	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	137	20779	step.skipped	101	1795368205328968759	{"scale":9.313225746154785e-10,"consecutive":42}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	138	20779	scaler.backoff	101	1795368205328968759	{"from":9.313225746154785e-10,"to":4.656612873077393e-10}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	139	20779	values.logged	101	1795368205329343625	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	140	20779	step.skipped	102	1795368205337100173	{"scale":4.656612873077393e-10,"consecutive":43}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	141	20779	scaler.backoff	102	1795368205337100173	{"from":4.656612873077393e-10,"to":2.3283064365386963e-10}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	142	20779	values.logged	102	1795368205337491603	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	143	20779	step.skipped	103	1795368205345245157	{"scale":2.3283064365386963e-10,"consecutive":44}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	144	20779	scaler.backoff	103	1795368205345245157	{"from":2.3283064365386963e-10,"to":1.1641532182693481e-10}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	145	20779	values.logged	103	1795368205345632090	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	146	20779	step.skipped	104	1795368205348793316	{"scale":1.1641532182693481e-10,"consecutive":45}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	147	20779	scaler.backoff	104	1795368205348793316	{"from":1.1641532182693481e-10,"to":5.820766091346741e-11}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	148	20779	values.logged	104	1795368205349209373	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	149	20779	step.skipped	105	1795368205360710702	{"scale":5.820766091346741e-11,"consecutive":46}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	150	20779	scaler.backoff	105	1795368205360710702	{"from":5.820766091346741e-11,"to":2.9103830456733704e-11}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	151	20779	values.logged	105	1795368205365041793	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	152	20779	step.skipped	106	1795368205366600874	{"scale":2.9103830456733704e-11,"consecutive":47}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	153	20779	scaler.backoff	106	1795368205366600874	{"from":2.9103830456733704e-11,"to":1.4551915228366852e-11}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	154	20779	values.logged	106	1795368205376041048	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	155	20779	step.skipped	107	1795368205378647902	{"scale":1.4551915228366852e-11,"consecutive":48}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	156	20779	scaler.backoff	107	1795368205378647902	{"from":1.4551915228366852e-11,"to":7.275957614183426e-12}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	157	20779	values.logged	107	1795368205379049447	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	158	20779	step.skipped	108	1795368205389350327	{"scale":7.275957614183426e-12,"consecutive":49}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	159	20779	scaler.backoff	108	1795368205389350327	{"from":7.275957614183426e-12,"to":3.637978807091713e-12}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	160	20779	values.logged	108	1795368205389790329	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	161	20779	step.skipped	109	1795368205401388412	{"scale":3.637978807091713e-12,"consecutive":50}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	162	20779	scaler.backoff	109	1795368205401388412	{"from":3.637978807091713e-12,"to":1.8189894035458565e-12}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	163	20779	values.logged	109	1795368205403608393	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	164	20779	step.skipped	110	1795368205406456625	{"scale":1.8189894035458565e-12,"consecutive":51}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	165	20779	scaler.backoff	110	1795368205406456625	{"from":1.8189894035458565e-12,"to":9.094947017729282e-13}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	166	20779	values.logged	110	1795368205406852041	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	167	20779	step.skipped	111	1795368205412714461	{"scale":9.094947017729282e-13,"consecutive":52}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	168	20779	scaler.backoff	111	1795368205412714461	{"from":9.094947017729282e-13,"to":4.547473508864641e-13}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	169	20779	values.logged	111	1795368205413094414	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	170	20779	step.skipped	112	1795368205420905263	{"scale":4.547473508864641e-13,"consecutive":53}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	171	20779	scaler.backoff	112	1795368205420905263	{"from":4.547473508864641e-13,"to":2.2737367544323206e-13}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	172	20779	values.logged	112	1795368205421308992	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	173	20779	step.skipped	113	1795368205436307054	{"scale":2.2737367544323206e-13,"consecutive":54}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	174	20779	scaler.backoff	113	1795368205436307054	{"from":2.2737367544323206e-13,"to":1.1368683772161603e-13}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	175	20779	values.logged	113	1795368205436764252	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	176	20779	step.skipped	114	1795368205440989255	{"scale":1.1368683772161603e-13,"consecutive":55}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	177	20779	scaler.backoff	114	1795368205440989255	{"from":1.1368683772161603e-13,"to":5.684341886080802e-14}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	178	20779	values.logged	114	1795368205441465271	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	179	20779	step.skipped	115	1795368205445010236	{"scale":5.684341886080802e-14,"consecutive":56}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	180	20779	scaler.backoff	115	1795368205445010236	{"from":5.684341886080802e-14,"to":2.842170943040401e-14}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	181	20779	values.logged	115	1795368205445374305	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	182	20779	step.skipped	116	1795368205457225473	{"scale":2.842170943040401e-14,"consecutive":57}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	183	20779	scaler.backoff	116	1795368205457225473	{"from":2.842170943040401e-14,"to":1.4210854715202004e-14}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	184	20779	values.logged	116	1795368205457623924	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	185	20779	step.skipped	117	1795368205466366484	{"scale":1.4210854715202004e-14,"consecutive":58}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	186	20779	scaler.backoff	117	1795368205466366484	{"from":1.4210854715202004e-14,"to":7.105427357601002e-15}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	187	20779	values.logged	117	1795368205466759947	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	188	20779	step.skipped	118	1795368205477233342	{"scale":7.105427357601002e-15,"consecutive":59}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	189	20779	scaler.backoff	118	1795368205477233342	{"from":7.105427357601002e-15,"to":3.552713678800501e-15}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	190	20779	values.logged	118	1795368205477663330	{"samples":16.0}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	191	20779	step.skipped	119	1795368205485042308	{"scale":3.552713678800501e-15,"consecutive":60}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	192	20779	scaler.backoff	119	1795368205485042308	{"from":3.552713678800501e-15,"to":1.7763568394002505e-15}
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	193	20779	values.logged	119	1795368205485444474	{"samples":16.0,"val_loss":"Infinity"}
\.


--
-- Data for Name: events_20261123; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.events_20261123 (run, stream, number, day, name, step, "time", data) FROM stdin;
\.


--
-- Data for Name: events_20261124; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.events_20261124 (run, stream, number, day, name, step, "time", data) FROM stdin;
\.


--
-- Data for Name: events_20261125; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.events_20261125 (run, stream, number, day, name, step, "time", data) FROM stdin;
\.


--
-- Data for Name: events_rest; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.events_rest (run, stream, number, day, name, step, "time", data) FROM stdin;
\.


--
-- Data for Name: findings; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.findings (run, stream, verdict, body, active, found) FROM stdin;
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	nonfinite-loss	{"verdict":"nonfinite-loss","severity":"page","first_step":60,"opened_step":60,"last_step":119,"cause":"The training loss was Infinity 60 times since step 60. The scaler skipped these steps, so no weight was changed; buffers (running statistics) were not read. All that the model gave is finite, at most 4.412: the NaN or Inf comes from the targets, which are not read, or from the loss itself.","fix":"Look at the batch of step 60 and at the loss: a mean over nothing (all targets ignored), log or division by zero, logits above 65504 in float16. Compute the loss in float32.","title":"Loss is infinite at step 60","active":true,"times":1,"tensor":null,"module":null,"caller":null,"evidence":{"loss":"Infinity","nonfinite_losses":60,"steps_skipped":60,"steps_applied":0,"steps_partly_applied":0,"gradients_moved":null,"weights_at_risk":false,"nonfinite_weight":null,"nonfinite_buffer":null,"nonfinite_tensors":6,"born_in":"forward","op":"loss","input":null,"micro_batch":null,"last_finite_absmax":4.411621570587158},"ranks":[],"earliest_step":60}	t	1795368277720347576
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	scale-collapse	{"verdict":"scale-collapse","severity":"page","first_step":60,"opened_step":64,"last_step":119,"cause":"60 steps from 60 to 119 were skipped and the scale fell from 2048 (2^11) to 3.55e-15 (2^-48), although the first of these scales had worked: the gradients are non-finite at any scale that was tried, down to 3.55e-15 (2^-48). All 6 gradients that were read are non-finite: they do not say where it began. After 79 more such steps 1/scale is infinite and turns good gradients into NaN.","fix":"Stop the run and mend what makes the gradients non-finite: look for an overflow, a division or a missing eps there, or run it in float32. Do not lower the scale further. The skipped steps changed no weight: go on from there, or from a checkpoint from before step 60, with a new GradScaler.","title":"Loss scale collapsed from 2048 to 3.55e-15","active":true,"times":1,"tensor":null,"module":null,"caller":null,"evidence":{"scale_from":2048.0,"scale_to":3.552713678800501e-15,"lowest_failed_scale":3.552713678800501e-15,"skipped_steps":60,"steps_applied":0,"applied_again_at_step":null,"applied_again_at_scale":null,"weights_nonfinite_at_step":null,"steps_left":79,"nonfinite_tensors":6,"finite_tensors":0},"ranks":[],"earliest_step":60}	t	1795368277720347576
\.


--
-- Data for Name: incidents; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.incidents (run, id, verdict, number, severity, title, state, times, opened, acknowledged, closed, closed_reason, first_step, opened_step, last_step, stream, rank, tensor, module, caller, cause, fix, evidence, consequences, silenced) FROM stdin;
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	e2107b41-5c4f-4c60-aa8d-4527e2cbe099.nonfinite-loss.1	nonfinite-loss	1	page	Loss is infinite at step 60	open	1	1795368278039857269	\N	\N	\N	60	60	119	2713462319294b94b09ff920f92623fe	0	\N	\N	\N	The training loss was Infinity 60 times since step 60. The scaler skipped these steps, so no weight was changed; buffers (running statistics) were not read. All that the model gave is finite, at most 4.412: the NaN or Inf comes from the targets, which are not read, or from the loss itself.	Look at the batch of step 60 and at the loss: a mean over nothing (all targets ignored), log or division by zero, logits above 65504 in float16. Compute the loss in float32.	{"loss":"Infinity","nonfinite_losses":60,"steps_skipped":60,"steps_applied":0,"steps_partly_applied":0,"gradients_moved":null,"weights_at_risk":false,"nonfinite_weight":null,"nonfinite_buffer":null,"nonfinite_tensors":6,"born_in":"forward","op":"loss","input":null,"micro_batch":null,"last_finite_absmax":4.411621570587158}	[{"verdict":"scale-collapse","severity":"page","title":"Loss scale collapsed from 2048 to 3.55e-15","first_step":60,"cause":"60 steps from 60 to 119 were skipped and the scale fell from 2048 (2^11) to 3.55e-15 (2^-48), although the first of these scales had worked: the gradients are non-finite at any scale that was tried, down to 3.55e-15 (2^-48). All 6 gradients that were read are non-finite: they do not say where it began. After 79 more such steps 1/scale is infinite and turns good gradients into NaN."}]	\N
\.


--
-- Data for Name: keeping; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.keeping (run, stream, claimed_by, claimed_until, rows, finished) FROM stdin;
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	\N	0	1100	t
06895145-bce5-4da2-86c5-32649224320c	1008d51ad6474029831b97ee67af0514	\N	0	300	t
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	\N	0	120	t
\.


--
-- Data for Name: outbox; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.outbox (run, id, incident, kind, channel, message, state, attempts, error, created, due, claimed_until, sent) FROM stdin;
\.


--
-- Data for Name: projects; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.projects (name, created) FROM stdin;
compat	1795368273771966446
\.


--
-- Data for Name: runs; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.runs (id, name, project, state, config, tags, environment, world_size, started, ended, judged_version, judged_at, claimed_by, claimed_until, folded, whole, states, external_id) FROM stdin;
87383590-da3c-495e-890f-f0a094bb4779	reference	compat	ended	{"steps":1100,"lr":0.01}	{"team":"vision"}	{"torch":"2.13.0+cpu","python":"3.11.7","ammeter":"0.1.0","device":"x86_64","threads":"1","cpu":"AMD EPYC","parameters":"193","trainable_parameters":"193","parameter_tensors":"6","optimizer":"SGD","optimizer.tensors":"6","optimizer.lr":"0.01","optimizer.momentum":"0.0","optimizer.dampening":"0.0","optimizer.weight_decay":"0.0","optimizer.nesterov":"False","optimizer.maximize":"False","optimizer.differentiable":"False","dtypes":"float32","command":"train.py 1100 1000000000 0.0 '{\\"project\\": \\"compat\\", \\"name\\": \\"reference\\", \\"tags\\": {\\"team\\": \\"vision\\"}}'"}	1	1795368169422671793	1795368178927991413	2	1795368273771966446	\N	1795368303771966446	{"applied":1100,"outcome":"ended"}	{}	\\x	87383590-da3c-495e-890f-f0a094bb4779
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	broken	compat	ended	{"steps":120,"lr":0.01}	{"team":"speech"}	{"torch":"2.13.0+cpu","python":"3.11.7","ammeter":"0.1.0","device":"x86_64","threads":"1","cpu":"AMD EPYC","parameters":"193","trainable_parameters":"193","parameter_tensors":"6","optimizer":"SGD","optimizer.tensors":"6","optimizer.lr":"0.01","optimizer.momentum":"0.0","optimizer.dampening":"0.0","optimizer.weight_decay":"0.0","optimizer.nesterov":"False","optimizer.maximize":"False","optimizer.differentiable":"False","dtypes":"float32","command":"train.py 120 60 0.0 '{\\"project\\": \\"compat\\", \\"name\\": \\"broken\\", \\"tags\\": {\\"team\\": \\"speech\\"}}'"}	1	1795368204294956878	1795368205492190114	1	1795368278039857269	\N	1795368308039857269	{"applied":60,"skipped":60,"outcome":"diverged"}	{}	\\x	e2107b41-5c4f-4c60-aa8d-4527e2cbe099
06895145-bce5-4da2-86c5-32649224320c	candidate	compat	ended	{"steps":300,"lr":0.01}	{"baseline":"reference"}	{"torch":"2.13.0+cpu","python":"3.11.7","ammeter":"0.1.0","device":"x86_64","threads":"1","cpu":"AMD EPYC","parameters":"193","trainable_parameters":"193","parameter_tensors":"6","optimizer":"SGD","optimizer.tensors":"6","optimizer.lr":"0.01","optimizer.momentum":"0.0","optimizer.dampening":"0.0","optimizer.weight_decay":"0.0","optimizer.nesterov":"False","optimizer.maximize":"False","optimizer.differentiable":"False","dtypes":"float32","command":"train.py 300 1000000000 0.0 '{\\"project\\": \\"compat\\", \\"name\\": \\"candidate\\", \\"tags\\": {\\"baseline\\": \\"reference\\"}}'"}	1	1795368188462963622	1795368192151553204	1	1795368277383503588	\N	1795368307383503588	{"applied":300,"outcome":"ended","validations":"held"}	{"baseline":{"id":"87383590-da3c-495e-890f-f0a094bb4779","step":299,"over":true,"baseline_over":true,"runs":["06895145-bce5-4da2-86c5-32649224320c","87383590-da3c-495e-890f-f0a094bb4779"],"numbers":{"name":"reference","speedup":1.0270888302352044,"per":"step","seconds":0.008251791819930077,"baseline_seconds":0.00847532320767641,"memory_ratio":null,"validation_delta":0.0,"validation_step":299,"validation_metric":"val_loss","metrics":[{"name":"val_loss","better":"lower","step":299,"run":0.3400176465511322,"baseline":0.3400176465511322,"delta":0.0}],"first_other_loss":null,"not_compared":{},"differences":[]},"findings":{}}}	\\x	06895145-bce5-4da2-86c5-32649224320c
\.


--
-- Data for Name: schemas; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.schemas (run, stream, id, body) FROM stdin;
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	5f2e2abfcc7191b4	\\x83a77363616c617273dc001ea57363616c65ae67726f7774685f747261636b6572a9666f756e645f696e66a76170706c696564a7736b6970706564a46c6f7373a876616c5f6c6f7373a773616d706c6573a9677261645f6e6f726dab677261645f6162736d6178ae677261645f6e6f6e66696e697465a8636c69705f6d6178ad6d6963726f5f62617463686573ac737465705f7365636f6e6473b06f766572686561645f7365636f6e6473a6746f6b656e73ae63616c6c735f666f6c6c6f776564ab6e6f726d735f6576657279aa66756c6c5f6576657279ae686f73745f7273735f6279746573b66465766963655f616c6c6f63617465645f6279746573b56465766963655f72657365727665645f6279746573b46465766963655f616c6c6f635f72657472696573ac6c6f73745f75706461746573ac7570646174655f726174696fb1776569676874735f6e6f6e66696e697465ae677261645f61677265656d656e74b36c6f775f707265636973696f6e5f7368617265aa636173745f6279746573ad6c6f73735f6261636b77617264a573746174739ca9677261642e6e6f726dab677261642e6162736d6178aa677261642e7a65726f73af677261642e7375626e6f726d616c73a9677261642e6e616e73a9677261642e696e6673ae677261642e667031365f67726964ab7765696768742e6e6f726db07765696768742e6e6f6e66696e697465ac7570646174652e726174696fab7570646174652e6c6f7374ae677261642e61677265656d656e74a774656e736f72739694a8302e776569676874921008a7666c6f617433320094a6302e626961739110a7666c6f617433320094a8312e7765696768749110a7666c6f617433320094a6312e626961739110a7666c6f617433320094a8332e776569676874920110a7666c6f617433320094a6332e626961739101a7666c6f6174333200
06895145-bce5-4da2-86c5-32649224320c	1008d51ad6474029831b97ee67af0514	5f2e2abfcc7191b4	\\x83a77363616c617273dc001ea57363616c65ae67726f7774685f747261636b6572a9666f756e645f696e66a76170706c696564a7736b6970706564a46c6f7373a876616c5f6c6f7373a773616d706c6573a9677261645f6e6f726dab677261645f6162736d6178ae677261645f6e6f6e66696e697465a8636c69705f6d6178ad6d6963726f5f62617463686573ac737465705f7365636f6e6473b06f766572686561645f7365636f6e6473a6746f6b656e73ae63616c6c735f666f6c6c6f776564ab6e6f726d735f6576657279aa66756c6c5f6576657279ae686f73745f7273735f6279746573b66465766963655f616c6c6f63617465645f6279746573b56465766963655f72657365727665645f6279746573b46465766963655f616c6c6f635f72657472696573ac6c6f73745f75706461746573ac7570646174655f726174696fb1776569676874735f6e6f6e66696e697465ae677261645f61677265656d656e74b36c6f775f707265636973696f6e5f7368617265aa636173745f6279746573ad6c6f73735f6261636b77617264a573746174739ca9677261642e6e6f726dab677261642e6162736d6178aa677261642e7a65726f73af677261642e7375626e6f726d616c73a9677261642e6e616e73a9677261642e696e6673ae677261642e667031365f67726964ab7765696768742e6e6f726db07765696768742e6e6f6e66696e697465ac7570646174652e726174696fab7570646174652e6c6f7374ae677261642e61677265656d656e74a774656e736f72739694a8302e776569676874921008a7666c6f617433320094a6302e626961739110a7666c6f617433320094a8312e7765696768749110a7666c6f617433320094a6312e626961739110a7666c6f617433320094a8332e776569676874920110a7666c6f617433320094a6332e626961739101a7666c6f6174333200
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	5f2e2abfcc7191b4	\\x83a77363616c617273dc001ea57363616c65ae67726f7774685f747261636b6572a9666f756e645f696e66a76170706c696564a7736b6970706564a46c6f7373a876616c5f6c6f7373a773616d706c6573a9677261645f6e6f726dab677261645f6162736d6178ae677261645f6e6f6e66696e697465a8636c69705f6d6178ad6d6963726f5f62617463686573ac737465705f7365636f6e6473b06f766572686561645f7365636f6e6473a6746f6b656e73ae63616c6c735f666f6c6c6f776564ab6e6f726d735f6576657279aa66756c6c5f6576657279ae686f73745f7273735f6279746573b66465766963655f616c6c6f63617465645f6279746573b56465766963655f72657365727665645f6279746573b46465766963655f616c6c6f635f72657472696573ac6c6f73745f75706461746573ac7570646174655f726174696fb1776569676874735f6e6f6e66696e697465ae677261645f61677265656d656e74b36c6f775f707265636973696f6e5f7368617265aa636173745f6279746573ad6c6f73735f6261636b77617264a573746174739ca9677261642e6e6f726dab677261642e6162736d6178aa677261642e7a65726f73af677261642e7375626e6f726d616c73a9677261642e6e616e73a9677261642e696e6673ae677261642e667031365f67726964ab7765696768742e6e6f726db07765696768742e6e6f6e66696e697465ac7570646174652e726174696fab7570646174652e6c6f7374ae677261642e61677265656d656e74a774656e736f72739694a8302e776569676874921008a7666c6f617433320094a6302e626961739110a7666c6f617433320094a8312e7765696768749110a7666c6f617433320094a6312e626961739110a7666c6f617433320094a8332e776569676874920110a7666c6f617433320094a6332e626961739101a7666c6f6174333200
\.


--
-- Data for Name: segments_20261121; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.segments_20261121 (run, stream, first_step, day, last_step, rows, parts, schema, steps, times) FROM stdin;
\.


--
-- Data for Name: segments_20261122; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.segments_20261122 (run, stream, first_step, day, last_step, rows, parts, schema, steps, times) FROM stdin;
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	0	20779	1099	1100	11	5f2e2abfcc7191b4	\\x000000000000000001000000000000000002	\\x31488984d66dea18e7b581000000000004020000000007d5b90302d6b706bfb67208b1ea6e0bf4a3d10c67f6e00eaf3d0d132235191370163314bd03e914ae551616dade3c1636533619f3205a19ba2b041a52b9f21af84bfa1c24750c1eb8b1701ea292551f3c5046202e068320ee3e81224c8d8023338ca22324fc7a23edcb4f248e3fff2318504324a98b3325535feb243d9e662515d88e25e2fac725fb1ea826d8ccaa266d10db268e031827f1093d27701bc1278d6d3228164cd428d84f4e299f93cc299d65c329315c2c2a700ee72a69930a2b850f892bf495fd2bb9a2952c59540b2d51cc2a2dc49ec42d54e7d02e0219792ed877d22e648f282f59654930ec79fa2f4fa42130f4696030e54511319c001031cee7da30633d6c31d7de093281a5e931d294b131f4af1e32b92d7532f3436e321b77363282ddcf327873d33243fd093343bfe8328412c7326684d0325284273325214033df1e5033242e7e33328c77334af13c33a8fa7c33c5202833153ab4330e2b9833ad78c533c47171330fccc033ffb1d833d1d7b3338fb16533a49e41342b92023583b39c348526a43459c3a3340519e934c72f98342e80913400f61e34c91854341fb99634d4ed90340e2d5e34033ed3344125b1346b487c3404c05134ce0ccb34dbb37e344a3dce34b7b87734d975b134a236a9344b47593418021135b9a5ae34e7d54a34d783be34c9cc2c358e0d5e35e02e98359e454936d9d38336cdd0db362fbd483762e75637ee81aa3784f9c3373de4983753e65f39e903f2388ef27a3811b692385962b63a3815493ac6bb213a08f4a83926d09d392c9a253977ca773910d9a93a3f17a53a2cc0ab3b929e913b1a00193ba00dfc3a7261903a824e6c3a12ba113ac49ef73930e3cb3983cf7d39b9a6ce39248a7a39d46d5a39acaa0e394a06393964637e39d4e43539109cef388616e138407489381601fb38a7476b3937b5ff38144ff8388dc26f39809275391799e1394474993945f77c39563e083939a4f23891430539ef20e0386cc6b638ff6c0e3955cd24390ec717392e5cd1385ab1d33856db1a396772fd38c68de8380d4a0a39ea8f083938c0203960e44539e5023e391cb8743913f7b539eb2a9539c905a5394c72b43912efd239e226fc397d077a3a3b56323a47352f3a0be9283a0c51593a99ac153a31e1103a53cefc39c0512c3a2d835c3a2823a63a8713303a67899a3a39e04e3ac284083a4bc2813aa388a53afc81ad3ac44d8c3af9901a3a31cc3b3a3e29513a2310873a0d03683a9f1f7c3a81076f3a60a7633abb1d4d3ac51ff73943d8003a7091f33954aa323af2c53a3a5cf2693a604f673a155e3b3a0a2a5b3a0d67e63922980e3ab093c33946236f3902857a39571fe43909bba6390e79a939a8d29b39d48f123a5b3dee397deafc39e110223a6ee3a63a758a5d3a2e65183a055e183a453c8b3a0531403aba663f3a600fb13a52b3a63a55fede3a1b58d53ae8988a3a3bf9fd3a61bcbc3adf3c733a9ee8ee3a3bfbe33a16aec93a73a0d63ae2601c3b0538803b0594ee3b1a842c3ce1736b3c4ce2553c62014a3c5979833c986df83c9c71293dfd050f3dd8ee1a3d145a8d3d41dab33d9addb83d790eef3d78e3e33dba14dc3d221e033edbd5c93da4ff433e4a02393e8385333e4e4fa73e5573833ed931583e9be7503e0dbb483e444c633e613f793ee8b4e43ef1ff213fec334b3f44c29e3fba49bf3fa5ca743f038fe23fd02ccf3f7d6d994067cb0f41bbf74441cdbdfd41653c664239bda442c3434b43f9cbba439c39eb437746f0435b9e564462bd224427438f44c65d82449249ef448933b0444429df442669d644a22dc7458e28fd45ac213246026a6646adc51647e0f6de46423641470c46ad473895f14750275e48083c1e48b99fd7481108c048e8edb948857dee485921f648ac8a4f494867404903020649aba97d49c3b83e49a7676f49778e3c4984215f495c67d349be33e0499557c849752af84991896a4a2fe7b04a1caf934a13458e4abcb8444a656e994a72c3764a03b3304a5953cd49d967354af0396d4a0eb3524a68a9074af544c4498bf97f4914a3384946ac2f494c6b304973e30749705ca54870cdf8488842144953a30d49e9973b495a8ab8491cd14449a609cd48f6c4df48bfcfdc48f2371f4915a30a49f76cc148bcf22d491b29c0491f71a5490336164a0135214a0734814a80d13e4a98d9714a32dce64aca21de4aecfbd44af2790d4b43917f4bb3db744b91836c4ba108224b25059b4bfe9dd04bd00f864bd93c0e4b3c04414bbd2cfe4ae032ae4ab8ccaa4a022aa84a2534dd4a22514e4b148e2a4b7567534b21c0734bb03a6a4bd92a624b85e45a4b5740534ba73a504b46c6c14b8937344cda4de94b7687e64b44a3064c34614e4c661b054c3313004c79c6b74bef16f24b2735a84bb2c4874bd837d14b5d57384cde58c14b71d1c24b36f1634bcea7344b87f1f24a540b2c4bbccbe04a0e019b4ab7f4964a551b274a5de40b4a6420064a790cbf49dd1e4649573bf7484e48b5489fb46d48787d29488dc4654848a51d48589556489316f247acb279475bcd0047d51a05473c893a472294f046f511eb46863ca646d84a61461f191b46a1dba145c8862845b0b0b04430834f448c37eb43e53e894396d127434633af427eec7f425db20642ba578d4104d213412cddb440af517240ff0ab040a1f16540760d24400fe6db3f5b3c963fc8d8443f3907003f8e329d3e0ad3743ef7bd313e317af93d9fddf53d1b66af3d238f683d1711673d92701f3d206f053d6bbac53cbcd7793c6bffc23cb5f6df3caa53c73ca4a88c3c411dc83cd97a863c7905583c800f153c7d90b63ba1b6933b382dc33b269bba3bca47b33b3329aa3b9b7ea33b533dc83b3106883be2ab113bd052993aad178a3ac24b473a3567673a2628333a55ee103a7f5ebb39e9a26239ad6bdd39edad9b39a18d2539881be3382638cd3843dea3382f0982384735af385ed183389f228d3851b2a838d53b39383862fe371b419738b31c543812ef2d38737efa37ee73c73709fc1f386d35d137db345b37d180e736a08c5737c21a1437495ad6368bd2f0368dbfaf362438a336337aff36adaeab3666093b36cf678c36566a43366028e2357e2318360409e535cc26aa356fe5a2351fb460359fbb5d350ae6683535ec2035a2ad7b35565a4d35a2663e3568fe07352d51f4345e9fe03460caaf3400bc7634ea76283453581734b198793486114c34d2376e34d72096345f1e72342ffa5f34d3451f34d91ef933790a9b33fb513a33fe5e8d33adb99f339971e033116faf33447fc133749bce3323e4aa33d1c646335c9de5336171af33a271b333f65dce331b9b883359a3743316cc17333cfab432545cc132693e113345759a324d5c4132c9060432695d953146625b31a1a81931df32ec30814be030d1a987308cebf1307f389230a375d7306f5b8130379a653041381f30e93bba2fb4adec2fb0f78e2f378c582f023aab2f67fb592fc566672fc5d12b2fca8e782fbf5b602f3f729e2fac79452f9c26062f4d588a2ffd872a2f1e32322f4497b92fdfa2672f709d112ff3d1132fcdd1cf2e239ec12e9e7e2c2fd8d62e2f385f262fdc901c2fc6ebd62ed2b46c2fd4bec22fc402eb2f5652e22f97b7dc2f9215772f3d06322f5b9a932ffff7872f556c402fa76bb72fd9e2ad2f403e7d2f6792dd2fa3cc822fc4c40f2f0ac8492fad52402f30c6ef2ee5dc812ebb5e332ea4eadf2d934de82d4885022ef72dcd2d772e3c2e7715e52df2e3dc2d1fe1fe2de502d62d92f7c02d2274a72d1361602df070bb2d0615d02dc301a12dc7bb002e01c8162e17cf3a2e9edff82d08a2db2dac0b142eab280d2ea5cd6d2e4cb5132e9cde502e0e22372ec072602e4162372ea2bc392ee64c492ee89c052e59240c2ffb769c2eb53a502eb83ddf2df7f6d82ded5ec32dcc79ed2d5b8ec62dc08e672d748af72cbb062a2d13c0eb2c31f8c32cbcebb72cf3605a2c6568542cbd3d252c8226f22b1291ac2b988cb92b8b62e62b21cde22ba298a62bb2ff6d2b7db92a2b019d542b3cc3082be2e1b52a8612472a47ea3f2a064ede298307b729f750ab29a50d4429f732062927460a2977ebb92882446428b063fc27cefc8a27a51f5327c6a096279df57927a0ff3327da1702272ee5a7266b349226099f9e26a71928266961b025bc278a25b9384725310700253d8319255c7cf724e5bbb224d5d12a252954fa243979e9258afa742553f25125fd1cdd24490bfb246274e524426b94244b688d248ddfe0248aaf11252fc749258ddf3f259ab6ee258e0ba625b17a5f2596c11b25aec4a22461302924a4b4d023d5d88c23c8720924613a9123608c3923dd5e0a2341f031239251e9223609e322e52fb6229c2664227c164022c068b922e0937f22bf12072221428e213bd11421d1dca420db1e2c20dce1f51fcb6c50209446e91f0d96a71f1fdb921f08dd4b1f05ca051f1b3e011f0e32b21ed1d3741ea31d151e0616b01d3969681dbf6c001dfda8101dd7b61a1d9e02121dfce1ca1c8de0c41c1c027e1cd10e141cedd8281cc38caf1bba74ab1b1c53621ba76a9d1b142d241bb9a7aa1af10f311a1782d0198d9ccb1913dae219ef62bb19818e6a19d16d301996776a19ed046219f08e58198f9d1019920ee3186951df183692fd1842d6d518576eaf18942dab18e0cac3189ef16f18dadb2f18b23ccc1783408a17320f21188768b41749f53a17e44cb017985837175553fe1666839b16c5389516afae5116b26b08162222c7159275c5157d7b8b15d63a1c1500654f159cd8e814a3c3e7148e8cd514a61af214bfbbcf141f83cb140c59811433542114c3a8be1313a78013d45507135f1b9c12b57889120d0d67128e545c12f7111512d9e3cf116cb059119b9f0c112685b2101e353a10619af80fdf2901104688f90f072b10101a03e80fe9b3e40f886a980ff356670f252e100f7af1a80e9057ad0eebabc10ecc48490e1bdf390ec163150e9ff7d60db78ce10d28e9780d1822b10d4f6bd00d5256840deff0260d9352400d2f5bd80c2c122c0d63b3000dfbe29d0c45fe130dd2b9e10c114dea0c82fdda0c52d0f30c56530e0d2616e20c5263df0c6640160decad0a0dbaac050d5a91d20c20ce620d21040f0d8289e70c3fd5bc0c271dbd0c12fad00ca404c90ced5c570cad76df0b22ff140c944caa0ba4766e0b3056a60bfc98300b2e631b0b7dd41f0b368b490bbbf6320b4eccfa0a4449940a6949f10a3c2f610b425f170bc0a3e10ad40cd00a7970050bcb973a0be9bb700b412e330bb144cf0a6620310bd6da6b0ba3cc490b641a000ba8af9c0ae0a7b70ac95a680bfff20f0b5f0eda0a7b55b40a75cc570a28410a0a6d65840ab635390a97920e0ae99a140a7520e70938affb0929a6190aa072be09d0145e091b9bc409f3c390096323f6092d76aa099060a509b1f37909ddd24309d9e26b09b0f2a7090d366a0995126d0962b16f093fc66a0941dc200910c15c0908c52c09a13ad6089bb602094e88ec081c23a808aded5108591d82082a3209080d93e3074f88cc07921bad07a07fcc07015e7907f3e2480751cef6067ef8b1064c597906b1fe29060e2be5056e32e9051d19a20543bb5205b7a5050518480d05cd0bab043a1ab104540949046f39710404aa44047c325a040f3e3f041da694040db8900458005c047b157904fe070904fbf8b303d7bb48044831c304e1b45a04c332130436075f04df4a4104e388430471313c0420731e056ae3d204b11dc804f73ecc0406b39e043fe1ce04c6ba8d04863750049cd86704f9d95d04708e550482e6dd036d1d08049325f003c6098a032bd1100365e4ce02f2cd5e0275432902caac25023c24ae010d2f5b0108c30a01eb70a1006ef9d100bf0acf0061909100421a3f00576ae8ffd88610001d9c0d00891c1e004aaddaff5f18d4ffc64e8bff034fc9ff5e0672ff14ab38ff50be4fff738043fff79922ffedb115ff0648bdfe54a11bfff27ae5fef68f12ff77246afff60f46ff2d2563ff762293ff338c92ff6bad9cff4813c7ffd8e998ff04ee72ff3e346bfff5f523ff08c95cff37cb8fffbd87cdff9f7dbfff768160ffc89ecdff6f15b3ff99786cff56dc16007760deffd52ac4ff3a000000
\.


--
-- Data for Name: segments_20261123; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.segments_20261123 (run, stream, first_step, day, last_step, rows, parts, schema, steps, times) FROM stdin;
\.


--
-- Data for Name: segments_20261124; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.segments_20261124 (run, stream, first_step, day, last_step, rows, parts, schema, steps, times) FROM stdin;
\.


--
-- Data for Name: segments_20261125; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.segments_20261125 (run, stream, first_step, day, last_step, rows, parts, schema, steps, times) FROM stdin;
\.


--
-- Data for Name: segments_rest; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.segments_rest (run, stream, first_step, day, last_step, rows, parts, schema, steps, times) FROM stdin;
\.


--
-- Data for Name: streams; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.streams (run, id, role, rank, world_size, host, pid, started, acknowledged, schema, rows, events, last_step, last_step_time, "precision", latest, counters, lost, faults, states, alive, backlog, heard, bye, bye_reason, version, opened) FROM stdin;
87383590-da3c-495e-890f-f0a094bb4779	1e9ad1b8e5974408909552c250121cb0	rank	0	1	vm	13351	1795368169422671793	206950	5f2e2abfcc7191b4	1100	25	1099	1795368178916863768	float32	{"grad_underflow":0.0,"scale":2147483648.0,"growth_tracker":49.0,"found_inf":0.0,"applied":1.0,"skipped":0.0,"loss":0.008900059387087822,"val_loss":0.008900059387087822,"samples":16.0,"grad_norm":4.260310649871826,"grad_absmax":3.7821671962738037,"grad_nonfinite":0.0,"micro_batches":1.0,"step_seconds":0.01242196373641491,"overhead_seconds":0.00007787600043229759,"calls_followed":0.0,"norms_every":142.21551513671875,"full_every":964.2042236328125,"host_rss_bytes":404467712.0,"lost_updates":0.0,"update_ratio":0.02052336558699608,"weights_nonfinite":0.0,"grad_agreement":0.20517539978027344,"cast_bytes":0.0,"loss_step":1099.0,"grad_norm_step":7.0}	{"steps":1100,"applied":1100,"skipped":0,"nonfinite_steps":0,"nonfinite_nan":0,"nonfinite_inf":0,"nonfinite_loss_steps":0,"overflow_events":0,"backoffs":0,"growths":22,"samples":17600.0,"step_seconds":9.342278670228552,"overhead_seconds":0.4686893643665826,"checkpoints_complete":0,"checkpoints_partial":0,"grad_norms_read":8,"grad_norm_sum":55.77945566177368,"restores_passed":0,"restores_partial":0,"restores_failed":0,"consecutive_skipped":0,"last_nonfinite_time":0,"checkpoint_time":0,"grad_norm_histogram":[0,0,0,0,0,0,0,0,0,7,1,0,0,0,0,0,0,0],"step_seconds_histogram":[56,80,248,358,336,16,5,0,0,0,0,0,0,0,0,0]}	{}	{}	\\xde002baf6c6f73732d6e6f742d7363616c6564c4099296ffffffc200ff80b66772616469656e74732d6e6f742d756e7363616c6564c4099296ffffffc200ff80b97570646174652d6265747765656e2d6f7074696d697a657273c4099296ffffffc200ff80b36772616469656e74732d6e6f742d7265736574c4099296ffffffc200ff80b56d697865642d7363616c652d6772616469656e7473c4099296ffffffc200ff80ae756e737570706f727465642d6f70c4099296ffffffc200ff80b368616c662d6d61737465722d77656967687473c4099296ffffffc200ff80af7363616c65722d64697361626c6564c4099296ffffffc200ff80b0706f696e746c6573732d7363616c6572c4099296ffffffc200ff80b37363616c65722d6e6f742d726573746f726564c40b9496ffffffc200ff80a0a0ae7363616c65722d72656275696c74c4099296ffffffc200ff80b3636c69702d6265666f72652d756e7363616c65c44e9796ffffffc200ffa0cb0000000000000000cb0000000000000000980107cb40b10a8ee0000000cb40b10a8ee0000000cb40b10a8ee000000004cb40a910f060000000cb40a910f060000000c2c2af6e6f2d6c6f73732d7363616c696e67c4109996ffffffc200ffc2c3c2a000ffc0c2b468616c662d6f7074696d697a65722d7374617465c40c9596ffffffc200ffa0000090ad6570732d756e646572666c6f77c4099296ffffffc200ff80ae6d61736b65642d726f772d6e616ec4239296ffffffc200ffdc0010ffffa0a0a0a0ffffa0a0a0cbbff00000000000000000c2c3b361637469766174696f6e2d6f766572666c6f77c42d9496ffffffc200ffdc0010ffffa0a0a0a0ffffa0a0a0cbbff00000000000000000c2c3cb0000000000000000a0b17363616c652d756e646572666c6f776564c4269796ffffffc200ffcb41e0000000000000cbbff0000000000000cb00000000000000000000a0ae6e6f6e66696e6974652d6c6f7373c441dc001096ffffffc200ff000000c2c2cb7ff800000000000000c296ffc0000000c3dc0010ffffa0a0a0a0ffffa0a0a0cbbff00000000000000000c2c3a0a000c2a0b26e6f6e66696e6974652d6772616469656e74c497dc001796ffffffc200ff97cb41e000000000000000cb40245a42a0000000cb0000000000000000cb3fe045c05049ba71cb40effc0000000000cb0000000000000000ff0000ffc2cb7ff8000000000000900000c200cb000000000000000096ffc0000000c3cb7ff0000000000000cb7ff8000000000000c2c2c200a0dc0010ffffa0a0a0a0ffffa0a0a0cbbff00000000000000000c2c3b16e6f6e66696e6974652d77656967687473c4139c96ffffffc200ffffc2a000ffa00000c290ffaf726573756d652d6d69736d61746368c4189d96ffffffc200ffa0ffc200a0c300cd044bc292a0a0ffa0ae7363616c652d636f6c6c61707365c474dc001596ffffffc200ffcb41e0000000000000ff0000cb0000000000000000cb0000000000000000cb3fe00000000000000096ffc0000000c3cb0000000000000000cb0000000000000000c200ffcb0000000000000000cb41e0000000000000cb7ff000000000000000ffcb7ff8000000000000ae6772616469656e742d7370696b65c4addc001396ffffffc200ff9708c42051d7d43fdf7b1440756b0040f7231240f741c33fa2951140a975c03f0b84b93fcb0000000000000000cb0000000000000000909000c420a11a7d40267b5f41bb0200417691e640ad988040add63c41c54d8540489b9340cb7ff0000000000000cbfff0000000000000ff00000000c3cb0000000000000000cb0000000000000000a0cb0000000000000000cb7ff8000000000000cb7ff800000000000090a0a97369676e2d666c6970c465dc001096ffffffc200ffc40c5447143f98bf293f8019523ec40c267b5f417691e640add63c41cb0000000000000000ff00cb0000000000000000cb7ff800000000000000c400c400cb7ff8000000000000cb7ff8000000000000a0cb0000000000000000a0ae6f766572666c6f772d73746f726dc42b9c96ffffffc200ffc300cb41e0000000000000c29090ff9000cb3ff0000000000000cb0000000000000000af7363686564756c65722d6168656164c40b9496ffffffc200ff80ff00ad6c6f7073696465642d73746570c40c9596ffffffc200ffff000080b26772616469656e742d756e646572666c6f77c44d9e96ffffffc200ffc20000ffcb3ff0000000000000c3cb4090000000000000cb41e0000000000000cb0000000000000000cb0000000000000000cb0000000000000000a0cb0000000000000000ac6c6f73742d75706461746573c40b9496ffffffc200ffc2a090aa737461676e6174696f6ec4c09e96ffffffc200ffc2c3cd044c1fc480c20ad53c38546b3c2ca3113d945b6d3c6362bf3dd9e5353dbf7b353d2c31833c88b04d3c3eae073c95f8583c8266713d82313d3d6f5d003d638c073db9fdb83c973b2a3dfe6ba63c6109a43cfbcd633c5746183df5b51b3e8b97e03c39d83c3cd8eb973e51789a3d5432e43c4845f33ca2f8e23d3c2e413d6a53503c8ed1113ccb4010ac14c000000090cb7ff8000000000000cb7ff8000000000000cb7ff8000000000000cb7ff800000000000000a0ad667033322d66616c6c6261636bc41f9896ffffffc200ff90cb0000000000000000cb0000000000000000ffffc2a0a9736470612d6d617468c41f9896ffffffc200ff90cb0000000000000000cb0000000000000000ffffc2a0b16d6973616c69676e65642d6d61746d756cc41f9896ffffffc200ff90cb0000000000000000cb0000000000000000ffffc2a0aa636173742d636875726ec40f9796ffffffc200ff01ccc100000000b06d656d6f72792d6e6f742d7361766564c4279896ffffffc200ffcb7ff80000000000009000ffcb0000000000000000cb0000000000000000c2ab7374616c652d737461636bc41c9596ffffffc200ffaa322e31332e302b637075a67838365f3634a0a0b2636865636b706f696e742d6578706f736564c4099296ffffffc200ff80b5636865636b706f696e742d696e636f6d706c657465c4109996ffffffc200ffc2ff90a0ff0090a0b0636865636b706f696e742d7374616c65c4289996ffffffc200ffcf18ea6dd684894831ffa0cb404e00000000000001c300cb0000000000000000ab72756e2d7374616c6c6564c4339c96ffffffc200ffcd044bcf18ea6dd8b1612f18cd044ccb3fb41952d56d8dd600cb0000000000000000a000a2766dcd3427c2a872756e2d6c6f7374c4339f96ffffffc200ffcd044b00a2766dcd3427c3c3c2cb0000000000000000a0a7756e6b6e6f776e00cb41b81bb000000000ffa0ab6167656e742d626c696e64c4109596ffffffc200ffcd044bcd044c8080	f	0	1795368273795904641	{"reason":"closed","step":1099,"time":1795368178927991413,"message":"","ended_by":"","memory_limit":0}	closed	2	1795368273539991793
06895145-bce5-4da2-86c5-32649224320c	1008d51ad6474029831b97ee67af0514	rank	0	1	vm	13405	1795368188462963622	57847	5f2e2abfcc7191b4	300	9	299	1795368192128716112	float32	{"grad_underflow":0.0,"scale":32768.0,"growth_tracker":49.0,"found_inf":0.0,"applied":1.0,"skipped":0.0,"loss":0.3400176465511322,"val_loss":0.3400176465511322,"samples":16.0,"grad_norm":8.603072166442871,"grad_absmax":1.9867570400238037,"grad_nonfinite":0.0,"micro_batches":1.0,"step_seconds":0.0042414478957653046,"overhead_seconds":0.000054020998504711315,"calls_followed":0.0,"norms_every":145.03341674804688,"full_every":2019.4827880859375,"host_rss_bytes":404320256.0,"lost_updates":0.0,"update_ratio":0.0215177983045578,"weights_nonfinite":0.0,"grad_agreement":0.5792133808135986,"cast_bytes":0.0,"loss_step":299.0,"grad_norm_step":8.0}	{"steps":300,"applied":300,"skipped":0,"nonfinite_steps":0,"nonfinite_nan":0,"nonfinite_inf":0,"nonfinite_loss_steps":0,"overflow_events":0,"backoffs":0,"growths":6,"samples":4800.0,"step_seconds":3.4852043710416183,"overhead_seconds":0.22568257513921708,"checkpoints_complete":0,"checkpoints_partial":0,"grad_norms_read":9,"grad_norm_sum":64.38252782821655,"restores_passed":0,"restores_partial":0,"restores_failed":0,"consecutive_skipped":0,"last_nonfinite_time":0,"checkpoint_time":0,"grad_norm_histogram":[0,0,0,0,0,0,0,0,0,8,1,0,0,0,0,0,0,0],"step_seconds_histogram":[2,3,46,101,127,18,2,0,0,0,0,0,0,0,0,0]}	{}	{}	\\xde002baf6c6f73732d6e6f742d7363616c6564c4099296ffffffc200ff80b66772616469656e74732d6e6f742d756e7363616c6564c4099296ffffffc200ff80b97570646174652d6265747765656e2d6f7074696d697a657273c4099296ffffffc200ff80b36772616469656e74732d6e6f742d7265736574c4099296ffffffc200ff80b56d697865642d7363616c652d6772616469656e7473c4099296ffffffc200ff80ae756e737570706f727465642d6f70c4099296ffffffc200ff80b368616c662d6d61737465722d77656967687473c4099296ffffffc200ff80af7363616c65722d64697361626c6564c4099296ffffffc200ff80b0706f696e746c6573732d7363616c6572c4099296ffffffc200ff80b37363616c65722d6e6f742d726573746f726564c40b9496ffffffc200ff80a0a0ae7363616c65722d72656275696c74c4099296ffffffc200ff80b3636c69702d6265666f72652d756e7363616c65c44e9796ffffffc200ffa0cb0000000000000000cb0000000000000000980108cb40c134c5e0000000cb40c134c5e0000000cb40c134c5e000000004cb40b95eed80000000cb40b95eed80000000c2c2af6e6f2d6c6f73732d7363616c696e67c4109996ffffffc200ffc2c3c2a000ffc0c2b468616c662d6f7074696d697a65722d7374617465c40c9596ffffffc200ffa0000090ad6570732d756e646572666c6f77c4099296ffffffc200ff80ae6d61736b65642d726f772d6e616ec4239296ffffffc200ffdc0010ffffa0a0a0a0ffffa0a0a0cbbff00000000000000000c2c3b361637469766174696f6e2d6f766572666c6f77c42d9496ffffffc200ffdc0010ffffa0a0a0a0ffffa0a0a0cbbff00000000000000000c2c3cb0000000000000000a0b17363616c652d756e646572666c6f776564c4269796ffffffc200ffcb40e0000000000000cbbff0000000000000cb00000000000000000000a0ae6e6f6e66696e6974652d6c6f7373c441dc001096ffffffc200ff000000c2c2cb7ff800000000000000c296ffc0000000c3dc0010ffffa0a0a0a0ffffa0a0a0cbbff00000000000000000c2c3a0a000c2a0b26e6f6e66696e6974652d6772616469656e74c497dc001796ffffffc200ff97cb40e000000000000000cb40245a42a0000000cb0000000000000000cb3fd81bc8c7d63602cb40effc0000000000cb0000000000000000ff0000ffc2cb7ff8000000000000900000c200cb000000000000000096ffc0000000c3cb7ff0000000000000cb7ff8000000000000c2c2c200a0dc0010ffffa0a0a0a0ffffa0a0a0cbbff00000000000000000c2c3b16e6f6e66696e6974652d77656967687473c4139c96ffffffc200ffffc2a000ffa00000c290ffaf726573756d652d6d69736d61746368c4189d96ffffffc200ffa0ffc200a0c300cd012bc292a0a0ffa0ae7363616c652d636f6c6c61707365c474dc001596ffffffc200ffcb40e0000000000000ff0000cb0000000000000000cb0000000000000000cb3fe00000000000000096ffc0000000c3cb0000000000000000cb0000000000000000c200ffcb0000000000000000cb40e0000000000000cb7ff000000000000000ffcb7ff8000000000000ae6772616469656e742d7370696b65c4b5dc001396ffffffc200ff9709c42451d7d43fdf7b1440756b0040f7231240f741c33fa2951140a975c03f0b84b93f53bc0940cb0000000000000000cb0000000000000000909000c424a11a7d40267b5f41bb0200417691e640ad988040add63c41c54d8540489b93403bc0f240cb7ff0000000000000cbfff0000000000000ff00000000c3cb0000000000000000cb0000000000000000a0cb0000000000000000cb7ff8000000000000cb7ff800000000000090a0a97369676e2d666c6970c455dc001096ffffffc200ffc4045447143fc404267b5f41cb0000000000000000ff00cb0000000000000000cb7ff800000000000000c400c400cb7ff8000000000000cb7ff8000000000000a0cb0000000000000000a0ae6f766572666c6f772d73746f726dc42b9c96ffffffc200ffc300cb40e0000000000000c29090ff9000cb3ff0000000000000cb0000000000000000af7363686564756c65722d6168656164c40b9496ffffffc200ff80ff00ad6c6f7073696465642d73746570c40c9596ffffffc200ffff000080b26772616469656e742d756e646572666c6f77c44d9e96ffffffc200ffc20000ffcb3ff0000000000000c3cb4090000000000000cb40e0000000000000cb0000000000000000cb0000000000000000cb0000000000000000a0cb0000000000000000ac6c6f73742d75706461746573c40b9496ffffffc200ffc2a090aa737461676e6174696f6ec4c09e96ffffffc200ffc2c3cd012c1fc48029fdc93ef60af93d70680c3e3201893f307ab63e11437a3e7c0afb3d1303d53e3460213e4e000d3e0e387a3db217033e3721123e0c06153ea88e183ee1a5f33dc8f3903eb8e4933e68ca913e7f1d133f783cb03e6c7eb73d9e88213ed2f9f53dc280e63e9ebf843e6fcbca3dc95eb53e051ea53d4bc2493ef9e7253ecb16ae3ecb4010ac14c000000090cb7ff8000000000000cb7ff8000000000000cb7ff8000000000000cb7ff800000000000000a0ad667033322d66616c6c6261636bc41f9896ffffffc200ff90cb0000000000000000cb0000000000000000ffffc2a0a9736470612d6d617468c41f9896ffffffc200ff90cb0000000000000000cb0000000000000000ffffc2a0b16d6973616c69676e65642d6d61746d756cc41f9896ffffffc200ff90cb0000000000000000cb0000000000000000ffffc2a0aa636173742d636875726ec40f9796ffffffc200ff01ccc100000000b06d656d6f72792d6e6f742d7361766564c4279896ffffffc200ffcb7ff80000000000009000ffcb0000000000000000cb0000000000000000c2ab7374616c652d737461636bc41c9596ffffffc200ffaa322e31332e302b637075a67838365f3634a0a0b2636865636b706f696e742d6578706f736564c4099296ffffffc200ff80b5636865636b706f696e742d696e636f6d706c657465c4109996ffffffc200ffc2ff90a0ff0090a0b0636865636b706f696e742d7374616c65c4289996ffffffc200ffcf18ea6ddaf52202ddffa0cb404e00000000000001c300cb0000000000000000ab72756e2d7374616c6c6564c4339c96ffffffc200ffcd012bcf18ea6ddbc4de0d50cd012ccb3fade7479127f4d500cb0000000000000000a000a2766dcd345dc2a872756e2d6c6f7374c4339f96ffffffc200ffcd012b00a2766dcd345dc3c3c2cb0000000000000000a0a7756e6b6e6f776e00cb41b8197000000000ffa0ab6167656e742d626c696e64c4109596ffffffc200ffcd012bcd012c8080	f	0	1795368275607780836	{"reason":"closed","step":299,"time":1795368192151553204,"message":"","ended_by":"","memory_limit":0}	closed	1	1795368275607780836
e2107b41-5c4f-4c60-aa8d-4527e2cbe099	2713462319294b94b09ff920f92623fe	rank	0	1	vm	13541	1795368204294956878	48811	5f2e2abfcc7191b4	120	194	119	1795368205485042308	float32	{"grad_underflow":0.0,"scale":3.552713678800501e-15,"growth_tracker":0.0,"found_inf":1.0,"applied":0.0,"skipped":1.0,"loss":"Infinity","val_loss":"Infinity","samples":16.0,"grad_norm":"NaN","grad_absmax":3.7821671962738037,"grad_nonfinite":193.0,"micro_batches":1.0,"step_seconds":0.007809066213667393,"overhead_seconds":0.001023847027681768,"calls_followed":0.0,"norms_every":34.32356643676758,"full_every":771.4553833007812,"host_rss_bytes":405352448.0,"lost_updates":0.0,"update_ratio":0.0215177983045578,"weights_nonfinite":0.0,"grad_agreement":0.5792133808135986,"cast_bytes":0.0,"loss_step":119.0,"grad_norm_step":119.0}	{"steps":120,"applied":60,"skipped":60,"nonfinite_steps":60,"nonfinite_nan":1912,"nonfinite_inf":18,"nonfinite_loss_steps":60,"overflow_events":60,"backoffs":60,"growths":1,"samples":1920.0,"step_seconds":1.044437096978072,"overhead_seconds":0.267642601087573,"checkpoints_complete":0,"checkpoints_partial":0,"grad_norms_read":80,"grad_norm_sum":131.83112573623657,"restores_passed":0,"restores_partial":0,"restores_failed":0,"consecutive_skipped":60,"last_nonfinite_time":1795368205485042308,"checkpoint_time":0,"grad_norm_histogram":[0,0,0,0,0,0,0,0,0,19,1,0,0,0,0,0,0,0],"step_seconds_histogram":[3,5,30,39,39,3,0,0,0,0,0,0,0,0,0,0]}	{}	{}	\\xde002baf6c6f73732d6e6f742d7363616c6564c4099296ffffffc200ff80b66772616469656e74732d6e6f742d756e7363616c6564c4099296ffffffc200ff80b97570646174652d6265747765656e2d6f7074696d697a657273c4099296ffffffc200ff80b36772616469656e74732d6e6f742d7265736574c4099296ffffffc200ff80b56d697865642d7363616c652d6772616469656e7473c4099296ffffffc200ff80ae756e737570706f727465642d6f70c4099296ffffffc200ff80b368616c662d6d61737465722d77656967687473c4099296ffffffc200ff80af7363616c65722d64697361626c6564c4099296ffffffc200ff80b0706f696e746c6573732d7363616c6572c4099296ffffffc200ff80b37363616c65722d6e6f742d726573746f726564c40b9496ffffffc200ff80a0a0ae7363616c65722d72656275696c74c4099296ffffffc200ff80b3636c69702d6265666f72652d756e7363616c65c44e9796ffffffc200ffa0cb0000000000000000cb0000000000000000980113cb40b8b8d320000000cb40b8b8d320000000cb40b8b8d32000000004cb40b1059fc0000000cb40b1059fc0000000c2c2af6e6f2d6c6f73732d7363616c696e67c4109996ffffffc200ffc2c3c2a000ffc0c2b468616c662d6f7074696d697a65722d7374617465c40c9596ffffffc200ffa0000090ad6570732d756e646572666c6f77c4099296ffffffc200ff80ae6d61736b65642d726f772d6e616ec4239296ffffffc200ffdc0010ffffa0a0a0a0ffffa0a0a0cbbff00000000000000000c2c3b361637469766174696f6e2d6f766572666c6f77c42d9496ffffffc200ffdc0010ffffa0a0a0a0ffffa0a0a0cbbff00000000000000000c2c3cb0000000000000000a0b17363616c652d756e646572666c6f776564c4269796ffffffc200ffcb3cf0000000000000cbbff0000000000000cb00000000000000000000a0ae6e6f6e66696e6974652d6c6f7373c450dc0010963c3c77c3013c3c3c00c2c2cb7ff000000000000000c3963cc0060000c2dc00103d3ca7666f7277617264a0a0a0ffffa0a46c6f7373a0cb4011a580200000000000c2c3a0a000c2a46c6f7373b26e6f6e66696e6974652d6772616469656e74c497dc001796ffffffc200ff97cb40a000000000000000cb40245a42a0000000cb0000000000000000cb3fe045c05049ba71cb40effc0000000000cb0000000000000000ff0000ffc2cb7ff8000000000000900000c200cb000000000000000096ffc0000000c3cb7ff0000000000000cb7ff8000000000000c2c2c200a0dc0010ffffa0a0a0a0ffffa0a0a0cbbff00000000000000000c2c3b16e6f6e66696e6974652d77656967687473c4139c96ffffffc200ff3cc2a000ffa00000c290ffaf726573756d652d6d69736d61746368c4169d96ffffffc200ffa0ffc200a0c30077c292a0a0ffa0ae7363616c652d636f6c6c61707365c474dc0015963c4077c3013ccb40a00000000000003c3c3ccb40a0000000000000cb3cf0000000000000cb3fe0000000000000009653c0060000c2cb40a0000000000000cb3cf0000000000000c33cffcb40a0000000000000cb40a0000000000000cb3cf000000000000000ffcb7ff8000000000000ae6772616469656e742d7370696b65c4fddc001396ffffffc200ff9714c45051d7d43fdf7b1440756b0040f7231240f741c33fa2951140a975c03f0b84b93f53bc09409963e83f35a0cc3f6cc8f63f7484f13f8c98f93f39f6f33f2ea4d53f6ff5f03f0c80d83f0688dd3f9223e93fcb0000000000000000cb0000000000000000909000c440ad988040add63c41c54d8540489b93403bc0f240844add4028f76a40aff7ad407778a64026f4cd40ded3b0405aaa6640a05cb34046f77640ae664440066ac040cb7ff0000000000000cbfff0000000000000ff00000000c3cb0000000000000000cb0000000000000000a0cb0000000000000000cb7ff8000000000000cb7ff800000000000090a0a97369676e2d666c6970c455dc001096ffffffc200ffc4045447143fc404267b5f41cb0000000000000000ff00cb0000000000000000cb7ff800000000000000c400c400cb7ff8000000000000cb7ff8000000000000a0cb0000000000000000a0ae6f766572666c6f772d73746f726dc4c39c96ffffffc200ffc300cb3cf0000000000000c3987071727374757677903c9c93cb3ff0000000000000000193cb4000000000000000000193cb4010000000000000000193cb4020000000000000000193cb4030000000000000000193cb4040000000000000000193cb4050000000000000000193cb4060000000000000000193cb4070000000000000000193cb4080000000000000000193cb4090000000000000000193cb40a0000000000000000100cb3ff0000000000000cb0000000000000000af7363686564756c65722d6168656164c40b9496ffffffc200ff80ff00ad6c6f7073696465642d73746570c40c9596ffffffc200ffff000080b26772616469656e742d756e646572666c6f77c44d9e96ffffffc200ffc20000ffcb3ff0000000000000c3cb3cf0000000000000cb40a0000000000000cb0000000000000000cb0000000000000000cb0000000000000000a0cb0000000000000000ac6c6f73742d75706461746573c40b9496ffffffc200ffc2a090aa737461676e6174696f6ec4be9e96ffffffc200ffc2c33c1fc4809ab5a740726b833ffc0a264093770740dab83d3f73294c40b9ad773fdec9983f57cd653f3e3f8a3fed39823f092bc33f84f5013f7c3e8b3f950c683fbe4d333fa2cada3f3d4cd93fb463a13eaf79b23fb04d923f3c365f3f0bf8713ffc14be3f7dc1713fc3b69a3f2cb4243f49e2a23f0a61a93f5926ce3f0bf9323fe0fa673fcb4010ac14c000000090cb7ff8000000000000cb7ff8000000000000cb7ff8000000000000cb7ff800000000000000a0ad667033322d66616c6c6261636bc41f9896ffffffc200ff90cb0000000000000000cb0000000000000000ffffc2a0a9736470612d6d617468c41f9896ffffffc200ff90cb0000000000000000cb0000000000000000ffffc2a0b16d6973616c69676e65642d6d61746d756cc41f9896ffffffc200ff90cb0000000000000000cb0000000000000000ffffc2a0aa636173742d636875726ec40f9796ffffffc200ff01ccc100000000b06d656d6f72792d6e6f742d7361766564c4279896ffffffc200ffcb7ff80000000000009000ffcb0000000000000000cb0000000000000000c2ab7374616c652d737461636bc41c9596ffffffc200ffaa322e31332e302b637075a67838365f3634a0a0b2636865636b706f696e742d6578706f736564c4099296ffffffc200ff80b5636865636b706f696e742d696e636f6d706c657465c4109996ffffffc200ffc2ff90a0ff0090a0b0636865636b706f696e742d7374616c65c4289996ffffffc200ffcf18ea6ddea2b68acdffa0cb404e00000000000001c300cb0000000000000000ab72756e2d7374616c6c6564c42f9c96ffffffc200ff77cf18ea6ddee0f76a8478cb3f9a2336439182d200cb0000000000000000a000a2766dcd34e5c2a872756e2d6c6f7374c4319f96ffffffc200ff7700a2766dcd34e5c3c3c2cb0000000000000000a0a7756e6b6e6f776e00cb41b8293000000000ffa0ab6167656e742d626c696e64c40c9596ffffffc200ff77788080	f	0	1795368277720347576	{"reason":"closed","step":119,"time":1795368205492190114,"message":"","ended_by":"","memory_limit":0}	closed	1	1795368277720347576
\.


--
-- Data for Name: tokens; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.tokens (sha256, name, scopes, project, created, expires) FROM stdin;
\.


--
-- Data for Name: totals; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public.totals (project, name, outcome, verdict, severity, value) FROM stdin;
compat	runs	ended			2
compat	validations	held			1
compat	incidents		nonfinite-loss	page	1
compat	steps	applied			1460
compat	steps	skipped			60
compat	runs	diverged			1
\.


--
-- Name: alembic_version alembic_version_pkc; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);


--
-- Name: audit audit_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (at, id);


--
-- Name: chunks chunks_by_day_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.chunks
    ADD CONSTRAINT chunks_by_day_pkey PRIMARY KEY (run, stream, first_step, day);


--
-- Name: chunks_20261121 chunks_20261121_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.chunks_20261121
    ADD CONSTRAINT chunks_20261121_pkey PRIMARY KEY (run, stream, first_step, day);


--
-- Name: chunks_20261122 chunks_20261122_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.chunks_20261122
    ADD CONSTRAINT chunks_20261122_pkey PRIMARY KEY (run, stream, first_step, day);


--
-- Name: chunks_20261123 chunks_20261123_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.chunks_20261123
    ADD CONSTRAINT chunks_20261123_pkey PRIMARY KEY (run, stream, first_step, day);


--
-- Name: chunks_20261124 chunks_20261124_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.chunks_20261124
    ADD CONSTRAINT chunks_20261124_pkey PRIMARY KEY (run, stream, first_step, day);


--
-- Name: chunks_20261125 chunks_20261125_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.chunks_20261125
    ADD CONSTRAINT chunks_20261125_pkey PRIMARY KEY (run, stream, first_step, day);


--
-- Name: chunks_rest chunks_rest_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.chunks_rest
    ADD CONSTRAINT chunks_rest_pkey PRIMARY KEY (run, stream, first_step, day);


--
-- Name: columns columns_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.columns
    ADD CONSTRAINT columns_pkey PRIMARY KEY (run, stream, part, first_step, day);


--
-- Name: columns_20261121 columns_20261121_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.columns_20261121
    ADD CONSTRAINT columns_20261121_pkey PRIMARY KEY (run, stream, part, first_step, day);


--
-- Name: columns_20261122 columns_20261122_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.columns_20261122
    ADD CONSTRAINT columns_20261122_pkey PRIMARY KEY (run, stream, part, first_step, day);


--
-- Name: columns_20261123 columns_20261123_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.columns_20261123
    ADD CONSTRAINT columns_20261123_pkey PRIMARY KEY (run, stream, part, first_step, day);


--
-- Name: columns_20261124 columns_20261124_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.columns_20261124
    ADD CONSTRAINT columns_20261124_pkey PRIMARY KEY (run, stream, part, first_step, day);


--
-- Name: columns_20261125 columns_20261125_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.columns_20261125
    ADD CONSTRAINT columns_20261125_pkey PRIMARY KEY (run, stream, part, first_step, day);


--
-- Name: columns_rest columns_rest_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.columns_rest
    ADD CONSTRAINT columns_rest_pkey PRIMARY KEY (run, stream, part, first_step, day);


--
-- Name: deleted deleted_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.deleted
    ADD CONSTRAINT deleted_pkey PRIMARY KEY (run);


--
-- Name: events events_by_day_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_by_day_pkey PRIMARY KEY (run, stream, number, day);


--
-- Name: events_20261121 events_20261121_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events_20261121
    ADD CONSTRAINT events_20261121_pkey PRIMARY KEY (run, stream, number, day);


--
-- Name: events_20261122 events_20261122_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events_20261122
    ADD CONSTRAINT events_20261122_pkey PRIMARY KEY (run, stream, number, day);


--
-- Name: events_20261123 events_20261123_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events_20261123
    ADD CONSTRAINT events_20261123_pkey PRIMARY KEY (run, stream, number, day);


--
-- Name: events_20261124 events_20261124_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events_20261124
    ADD CONSTRAINT events_20261124_pkey PRIMARY KEY (run, stream, number, day);


--
-- Name: events_20261125 events_20261125_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events_20261125
    ADD CONSTRAINT events_20261125_pkey PRIMARY KEY (run, stream, number, day);


--
-- Name: events_rest events_rest_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.events_rest
    ADD CONSTRAINT events_rest_pkey PRIMARY KEY (run, stream, number, day);


--
-- Name: findings findings_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.findings
    ADD CONSTRAINT findings_pkey PRIMARY KEY (run, stream, verdict);


--
-- Name: incidents incidents_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.incidents
    ADD CONSTRAINT incidents_pkey PRIMARY KEY (run, id);


--
-- Name: keeping keeping_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.keeping
    ADD CONSTRAINT keeping_pkey PRIMARY KEY (run, stream);


--
-- Name: outbox outbox_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (run, id);


--
-- Name: projects projects_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.projects
    ADD CONSTRAINT projects_pkey PRIMARY KEY (name);


--
-- Name: runs runs_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (id);


--
-- Name: schemas schemas_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.schemas
    ADD CONSTRAINT schemas_pkey PRIMARY KEY (run, stream, id);


--
-- Name: segments segments_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.segments
    ADD CONSTRAINT segments_pkey PRIMARY KEY (run, stream, first_step, day);


--
-- Name: segments_20261121 segments_20261121_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.segments_20261121
    ADD CONSTRAINT segments_20261121_pkey PRIMARY KEY (run, stream, first_step, day);


--
-- Name: segments_20261122 segments_20261122_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.segments_20261122
    ADD CONSTRAINT segments_20261122_pkey PRIMARY KEY (run, stream, first_step, day);


--
-- Name: segments_20261123 segments_20261123_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.segments_20261123
    ADD CONSTRAINT segments_20261123_pkey PRIMARY KEY (run, stream, first_step, day);


--
-- Name: segments_20261124 segments_20261124_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.segments_20261124
    ADD CONSTRAINT segments_20261124_pkey PRIMARY KEY (run, stream, first_step, day);


--
-- Name: segments_20261125 segments_20261125_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.segments_20261125
    ADD CONSTRAINT segments_20261125_pkey PRIMARY KEY (run, stream, first_step, day);


--
-- Name: segments_rest segments_rest_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.segments_rest
    ADD CONSTRAINT segments_rest_pkey PRIMARY KEY (run, stream, first_step, day);


--
-- Name: streams streams_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.streams
    ADD CONSTRAINT streams_pkey PRIMARY KEY (run, id);


--
-- Name: tokens tokens_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (sha256);


--
-- Name: totals totals_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.totals
    ADD CONSTRAINT totals_pkey PRIMARY KEY (project, name, outcome, verdict, severity);


--
-- Name: ix_chunks_day; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_chunks_day ON ONLY public.chunks USING btree (day);


--
-- Name: chunks_20261121_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX chunks_20261121_day_idx ON public.chunks_20261121 USING btree (day);


--
-- Name: chunks_20261122_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX chunks_20261122_day_idx ON public.chunks_20261122 USING btree (day);


--
-- Name: chunks_20261123_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX chunks_20261123_day_idx ON public.chunks_20261123 USING btree (day);


--
-- Name: chunks_20261124_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX chunks_20261124_day_idx ON public.chunks_20261124 USING btree (day);


--
-- Name: chunks_20261125_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX chunks_20261125_day_idx ON public.chunks_20261125 USING btree (day);


--
-- Name: chunks_rest_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX chunks_rest_day_idx ON public.chunks_rest USING btree (day);


--
-- Name: ix_columns_day; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_columns_day ON ONLY public.columns USING btree (day);


--
-- Name: columns_20261121_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX columns_20261121_day_idx ON public.columns_20261121 USING btree (day);


--
-- Name: columns_20261122_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX columns_20261122_day_idx ON public.columns_20261122 USING btree (day);


--
-- Name: columns_20261123_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX columns_20261123_day_idx ON public.columns_20261123 USING btree (day);


--
-- Name: columns_20261124_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX columns_20261124_day_idx ON public.columns_20261124 USING btree (day);


--
-- Name: columns_20261125_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX columns_20261125_day_idx ON public.columns_20261125 USING btree (day);


--
-- Name: columns_rest_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX columns_rest_day_idx ON public.columns_rest USING btree (day);


--
-- Name: ix_events_day; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_events_day ON ONLY public.events USING btree (day);


--
-- Name: events_20261121_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX events_20261121_day_idx ON public.events_20261121 USING btree (day);


--
-- Name: ix_events_run_time; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_events_run_time ON ONLY public.events USING btree (run, "time", stream, number);


--
-- Name: events_20261121_run_time_stream_number_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX events_20261121_run_time_stream_number_idx ON public.events_20261121 USING btree (run, "time", stream, number);


--
-- Name: events_20261122_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX events_20261122_day_idx ON public.events_20261122 USING btree (day);


--
-- Name: events_20261122_run_time_stream_number_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX events_20261122_run_time_stream_number_idx ON public.events_20261122 USING btree (run, "time", stream, number);


--
-- Name: events_20261123_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX events_20261123_day_idx ON public.events_20261123 USING btree (day);


--
-- Name: events_20261123_run_time_stream_number_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX events_20261123_run_time_stream_number_idx ON public.events_20261123 USING btree (run, "time", stream, number);


--
-- Name: events_20261124_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX events_20261124_day_idx ON public.events_20261124 USING btree (day);


--
-- Name: events_20261124_run_time_stream_number_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX events_20261124_run_time_stream_number_idx ON public.events_20261124 USING btree (run, "time", stream, number);


--
-- Name: events_20261125_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX events_20261125_day_idx ON public.events_20261125 USING btree (day);


--
-- Name: events_20261125_run_time_stream_number_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX events_20261125_run_time_stream_number_idx ON public.events_20261125 USING btree (run, "time", stream, number);


--
-- Name: events_rest_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX events_rest_day_idx ON public.events_rest USING btree (day);


--
-- Name: events_rest_run_time_stream_number_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX events_rest_run_time_stream_number_idx ON public.events_rest USING btree (run, "time", stream, number);


--
-- Name: ix_incidents_closed; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_incidents_closed ON public.incidents USING btree (closed);


--
-- Name: ix_incidents_opened_id; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_incidents_opened_id ON public.incidents USING btree (opened, id);


--
-- Name: ix_incidents_state_opened; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_incidents_state_opened ON public.incidents USING btree (state, opened);


--
-- Name: ix_outbox_state_due; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_outbox_state_due ON public.outbox USING btree (state, due);


--
-- Name: ix_runs_ended; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_runs_ended ON public.runs USING btree (ended);


--
-- Name: ix_runs_external_id_project; Type: INDEX; Schema: public; Owner: -
--

CREATE UNIQUE INDEX ix_runs_external_id_project ON public.runs USING btree (external_id, project);


--
-- Name: ix_runs_project_started; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_runs_project_started ON public.runs USING btree (project, started);


--
-- Name: ix_runs_started_id; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_runs_started_id ON public.runs USING btree (started, id);


--
-- Name: ix_runs_state; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_runs_state ON public.runs USING btree (state);


--
-- Name: ix_segments_day; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_segments_day ON ONLY public.segments USING btree (day);


--
-- Name: ix_streams_heard; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_streams_heard ON public.streams USING btree (heard);


--
-- Name: segments_20261121_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX segments_20261121_day_idx ON public.segments_20261121 USING btree (day);


--
-- Name: segments_20261122_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX segments_20261122_day_idx ON public.segments_20261122 USING btree (day);


--
-- Name: segments_20261123_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX segments_20261123_day_idx ON public.segments_20261123 USING btree (day);


--
-- Name: segments_20261124_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX segments_20261124_day_idx ON public.segments_20261124 USING btree (day);


--
-- Name: segments_20261125_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX segments_20261125_day_idx ON public.segments_20261125 USING btree (day);


--
-- Name: segments_rest_day_idx; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX segments_rest_day_idx ON public.segments_rest USING btree (day);


--
-- Name: chunks_20261121_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_chunks_day ATTACH PARTITION public.chunks_20261121_day_idx;


--
-- Name: chunks_20261121_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.chunks_by_day_pkey ATTACH PARTITION public.chunks_20261121_pkey;


--
-- Name: chunks_20261122_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_chunks_day ATTACH PARTITION public.chunks_20261122_day_idx;


--
-- Name: chunks_20261122_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.chunks_by_day_pkey ATTACH PARTITION public.chunks_20261122_pkey;


--
-- Name: chunks_20261123_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_chunks_day ATTACH PARTITION public.chunks_20261123_day_idx;


--
-- Name: chunks_20261123_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.chunks_by_day_pkey ATTACH PARTITION public.chunks_20261123_pkey;


--
-- Name: chunks_20261124_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_chunks_day ATTACH PARTITION public.chunks_20261124_day_idx;


--
-- Name: chunks_20261124_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.chunks_by_day_pkey ATTACH PARTITION public.chunks_20261124_pkey;


--
-- Name: chunks_20261125_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_chunks_day ATTACH PARTITION public.chunks_20261125_day_idx;


--
-- Name: chunks_20261125_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.chunks_by_day_pkey ATTACH PARTITION public.chunks_20261125_pkey;


--
-- Name: chunks_rest_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_chunks_day ATTACH PARTITION public.chunks_rest_day_idx;


--
-- Name: chunks_rest_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.chunks_by_day_pkey ATTACH PARTITION public.chunks_rest_pkey;


--
-- Name: columns_20261121_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_columns_day ATTACH PARTITION public.columns_20261121_day_idx;


--
-- Name: columns_20261121_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.columns_pkey ATTACH PARTITION public.columns_20261121_pkey;


--
-- Name: columns_20261122_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_columns_day ATTACH PARTITION public.columns_20261122_day_idx;


--
-- Name: columns_20261122_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.columns_pkey ATTACH PARTITION public.columns_20261122_pkey;


--
-- Name: columns_20261123_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_columns_day ATTACH PARTITION public.columns_20261123_day_idx;


--
-- Name: columns_20261123_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.columns_pkey ATTACH PARTITION public.columns_20261123_pkey;


--
-- Name: columns_20261124_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_columns_day ATTACH PARTITION public.columns_20261124_day_idx;


--
-- Name: columns_20261124_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.columns_pkey ATTACH PARTITION public.columns_20261124_pkey;


--
-- Name: columns_20261125_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_columns_day ATTACH PARTITION public.columns_20261125_day_idx;


--
-- Name: columns_20261125_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.columns_pkey ATTACH PARTITION public.columns_20261125_pkey;


--
-- Name: columns_rest_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_columns_day ATTACH PARTITION public.columns_rest_day_idx;


--
-- Name: columns_rest_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.columns_pkey ATTACH PARTITION public.columns_rest_pkey;


--
-- Name: events_20261121_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_events_day ATTACH PARTITION public.events_20261121_day_idx;


--
-- Name: events_20261121_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.events_by_day_pkey ATTACH PARTITION public.events_20261121_pkey;


--
-- Name: events_20261121_run_time_stream_number_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_events_run_time ATTACH PARTITION public.events_20261121_run_time_stream_number_idx;


--
-- Name: events_20261122_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_events_day ATTACH PARTITION public.events_20261122_day_idx;


--
-- Name: events_20261122_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.events_by_day_pkey ATTACH PARTITION public.events_20261122_pkey;


--
-- Name: events_20261122_run_time_stream_number_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_events_run_time ATTACH PARTITION public.events_20261122_run_time_stream_number_idx;


--
-- Name: events_20261123_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_events_day ATTACH PARTITION public.events_20261123_day_idx;


--
-- Name: events_20261123_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.events_by_day_pkey ATTACH PARTITION public.events_20261123_pkey;


--
-- Name: events_20261123_run_time_stream_number_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_events_run_time ATTACH PARTITION public.events_20261123_run_time_stream_number_idx;


--
-- Name: events_20261124_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_events_day ATTACH PARTITION public.events_20261124_day_idx;


--
-- Name: events_20261124_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.events_by_day_pkey ATTACH PARTITION public.events_20261124_pkey;


--
-- Name: events_20261124_run_time_stream_number_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_events_run_time ATTACH PARTITION public.events_20261124_run_time_stream_number_idx;


--
-- Name: events_20261125_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_events_day ATTACH PARTITION public.events_20261125_day_idx;


--
-- Name: events_20261125_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.events_by_day_pkey ATTACH PARTITION public.events_20261125_pkey;


--
-- Name: events_20261125_run_time_stream_number_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_events_run_time ATTACH PARTITION public.events_20261125_run_time_stream_number_idx;


--
-- Name: events_rest_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_events_day ATTACH PARTITION public.events_rest_day_idx;


--
-- Name: events_rest_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.events_by_day_pkey ATTACH PARTITION public.events_rest_pkey;


--
-- Name: events_rest_run_time_stream_number_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_events_run_time ATTACH PARTITION public.events_rest_run_time_stream_number_idx;


--
-- Name: segments_20261121_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_segments_day ATTACH PARTITION public.segments_20261121_day_idx;


--
-- Name: segments_20261121_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.segments_pkey ATTACH PARTITION public.segments_20261121_pkey;


--
-- Name: segments_20261122_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_segments_day ATTACH PARTITION public.segments_20261122_day_idx;


--
-- Name: segments_20261122_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.segments_pkey ATTACH PARTITION public.segments_20261122_pkey;


--
-- Name: segments_20261123_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_segments_day ATTACH PARTITION public.segments_20261123_day_idx;


--
-- Name: segments_20261123_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.segments_pkey ATTACH PARTITION public.segments_20261123_pkey;


--
-- Name: segments_20261124_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_segments_day ATTACH PARTITION public.segments_20261124_day_idx;


--
-- Name: segments_20261124_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.segments_pkey ATTACH PARTITION public.segments_20261124_pkey;


--
-- Name: segments_20261125_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_segments_day ATTACH PARTITION public.segments_20261125_day_idx;


--
-- Name: segments_20261125_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.segments_pkey ATTACH PARTITION public.segments_20261125_pkey;


--
-- Name: segments_rest_day_idx; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.ix_segments_day ATTACH PARTITION public.segments_rest_day_idx;


--
-- Name: segments_rest_pkey; Type: INDEX ATTACH; Schema: public; Owner: -
--

ALTER INDEX public.segments_pkey ATTACH PARTITION public.segments_rest_pkey;


--
-- Name: findings fk_findings_streams; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.findings
    ADD CONSTRAINT fk_findings_streams FOREIGN KEY (run, stream) REFERENCES public.streams(run, id) ON DELETE CASCADE;


--
-- Name: incidents fk_incidents_runs; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.incidents
    ADD CONSTRAINT fk_incidents_runs FOREIGN KEY (run) REFERENCES public.runs(id) ON DELETE CASCADE;


--
-- Name: keeping fk_keeping_streams; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.keeping
    ADD CONSTRAINT fk_keeping_streams FOREIGN KEY (run, stream) REFERENCES public.streams(run, id) ON DELETE CASCADE;


--
-- Name: outbox fk_outbox_runs; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.outbox
    ADD CONSTRAINT fk_outbox_runs FOREIGN KEY (run) REFERENCES public.runs(id) ON DELETE CASCADE;


--
-- Name: schemas fk_schemas_streams; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.schemas
    ADD CONSTRAINT fk_schemas_streams FOREIGN KEY (run, stream) REFERENCES public.streams(run, id) ON DELETE CASCADE;


--
-- Name: streams fk_streams_runs; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.streams
    ADD CONSTRAINT fk_streams_runs FOREIGN KEY (run) REFERENCES public.runs(id) ON DELETE CASCADE;


--
-- PostgreSQL database dump complete
--


