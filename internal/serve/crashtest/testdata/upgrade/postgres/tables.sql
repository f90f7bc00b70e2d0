CREATE TABLE public.direct (
    id bigint NOT NULL
);
CREATE TABLE public.popup_campaigns (
    id integer NOT NULL,
    name text NOT NULL,
    placement text NOT NULL,
    "position" integer NOT NULL,
    payload text NOT NULL,
    target text NOT NULL,
    status text NOT NULL,
    starts_at timestamp with time zone,
    ends_at timestamp with time zone,
    repeat_after bigint NOT NULL,
    quiet_click bigint NOT NULL,
    quiet_dismiss bigint NOT NULL,
    cap integer NOT NULL,
    version bigint NOT NULL
);
CREATE TABLE public.popup_counts (
    campaign_id integer NOT NULL,
    kind smallint NOT NULL,
    slot smallint NOT NULL,
    events bigint NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE public.popup_events (
    id uuid NOT NULL,
    user_id text NOT NULL COLLATE pg_catalog."C",
    placement text NOT NULL COLLATE pg_catalog."C",
    sequence bigint NOT NULL,
    kind smallint NOT NULL,
    campaign_id integer NOT NULL,
    shown_at timestamp with time zone NOT NULL,
    at timestamp with time zone NOT NULL,
    next_at timestamp with time zone
);
CREATE TABLE public.popup_holder (
    id smallint DEFAULT 1 NOT NULL,
    token uuid NOT NULL,
    holder text NOT NULL,
    since timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT popup_holder_id_check CHECK ((id = 1))
);
CREATE TABLE public.popup_queues (
    queue uuid NOT NULL,
    sequence bigint NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE public.popup_state (
    user_id text NOT NULL COLLATE pg_catalog."C",
    placement text NOT NULL COLLATE pg_catalog."C",
    sequence bigint NOT NULL,
    kind smallint NOT NULL,
    campaign_id integer NOT NULL,
    at timestamp with time zone NOT NULL,
    next_at timestamp with time zone,
    event_id uuid NOT NULL,
    state bytea NOT NULL
)
WITH (fillfactor='80');
CREATE TABLE public.popup_version (
    id smallint DEFAULT 1 NOT NULL,
    version bigint NOT NULL,
    CONSTRAINT popup_version_id_check CHECK ((id = 1))
);
CREATE TABLE public.readings (
    id bigint NOT NULL,
    value double precision,
    note character varying(20),
    CONSTRAINT readings_value_check CHECK ((value <> (13)::double precision))
);
CREATE TABLE public.spillway_batches (
    id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    results bytea
);
CREATE TABLE public.spillway_requests (
    stream text NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    fingerprint bytea NOT NULL,
    outcome bytea NOT NULL,
    expires_at timestamp with time zone NOT NULL
);
CREATE TABLE public.spillway_spools (
    id uuid NOT NULL,
    stream text NOT NULL,
    after bigint NOT NULL,
    sequence bigint NOT NULL,
    results bytea,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);
INSERT INTO public.direct VALUES (1);
INSERT INTO public.direct VALUES (2);
INSERT INTO public.popup_campaigns VALUES (1, 'all', 'home', 10, '{"n":1}', '', 'active', NULL, NULL, 0, 3600000, 0, 0, 1);
INSERT INTO public.popup_counts VALUES (1, 1, 13, 1);
INSERT INTO public.popup_events VALUES ('01a20374-85ed-06db-550b-9a6024e76408', '7', 'home', 1, 1, 1, '2026-11-22 13:31:37.837+00', '2026-11-22 13:31:37.837+00', '2026-11-23 13:31:37.837+00');
INSERT INTO public.popup_holder VALUES (1, '6bf1bfb3-7ce3-d6d9-cbd4-bec1395cd2e8', 'process 15795 on vm', '2026-11-22 13:31:41.12698+00');
INSERT INTO public.popup_queues VALUES ('291517dc-68d1-c458-dcb1-4d4256790acc', 1);
INSERT INTO public.popup_state VALUES ('7', 'home', 1, 1, 1, '2026-11-22 13:31:37.837+00', '2026-11-23 13:31:37.837+00', '01a20374-85ed-06db-550b-9a6024e76408', '\x0101010114da97a4b7c06800da87d789c168');
INSERT INTO public.popup_version VALUES (1, 1);
INSERT INTO public.readings VALUES (1, NULL, 'none');
INSERT INTO public.readings VALUES (2, NULL, 'é');
INSERT INTO public.readings VALUES (4, NULL, 'none');
INSERT INTO public.readings VALUES (5, 0.5, 'none');
INSERT INTO public.readings VALUES (7, NULL, 'none');
INSERT INTO public.spillway_batches VALUES ('98859417-8983-851e-5ac7-db80de5895ac', '2026-11-22 13:31:37.672124+00', NULL);
INSERT INTO public.spillway_batches VALUES ('cf363859-63dc-e1bc-0923-1e25c8b6251d', '2026-11-22 13:31:37.67404+00', NULL);
INSERT INTO public.spillway_requests VALUES ('/readings', 'k1', '\x037c9214eef74cc3887f3a4f085b4e17d76280dafd273b0ee160c09c4ba1cfd4', '\x7b2273746f726564223a317d', '2026-11-23 13:31:37.561458+00');
INSERT INTO public.spillway_requests VALUES ('/direct', 'd1', '\x037c9214eef74cc3887f3a4f085b4e17d76280dafd273b0ee160c09c4ba1cfd4', '\x7b2273746f726564223a317d', '2026-11-23 13:31:37.671333+00');
INSERT INTO public.spillway_requests VALUES ('/readings', 'k4', '\xfe94ccbd074bb18b213f513152e3e3d0503e3746292df1d92bdd30aa4aaaee76', '\x7b2273746f726564223a317d', '2026-11-23 13:31:39.353119+00');
INSERT INTO public.spillway_requests VALUES ('/readings', 'k6', '\x21411998e642148768e2851950c93e8445ffd49167df1e68aa2a75f5e50e89c6', '\x7b2273746f726564223a312c2272656675736564223a5b7b22696e646578223a302c22726561736f6e223a226e657720726f7720666f722072656c6174696f6e205c2272656164696e67735c222076696f6c6174657320636865636b20636f6e73747261696e74205c2272656164696e67735f76616c75655f636865636b5c22227d5d7d', '2026-11-23 13:31:39.371088+00');
INSERT INTO public.spillway_spools VALUES ('334c2a08-7817-ebd0-2034-d32912a44c4f', '/readings', 3, 6, '\x7b2264656164223a5b7b2273657175656e6365223a362c22656e747279223a302c22726f77223a302c22726561736f6e223a226e657720726f7720666f722072656c6174696f6e205c2272656164696e67735c222076696f6c6174657320636865636b20636f6e73747261696e74205c2272656164696e67735f76616c75655f636865636b5c22227d5d7d', '2026-11-22 13:31:41.026301+00');
ALTER TABLE ONLY public.popup_campaigns
    ADD CONSTRAINT popup_campaigns_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.popup_counts
    ADD CONSTRAINT popup_counts_pkey PRIMARY KEY (campaign_id, kind, slot);
ALTER TABLE ONLY public.popup_events
    ADD CONSTRAINT popup_events_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.popup_holder
    ADD CONSTRAINT popup_holder_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.popup_queues
    ADD CONSTRAINT popup_queues_pkey PRIMARY KEY (queue);
ALTER TABLE ONLY public.popup_state
    ADD CONSTRAINT popup_state_pkey PRIMARY KEY (user_id, placement);
ALTER TABLE ONLY public.popup_version
    ADD CONSTRAINT popup_version_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.spillway_batches
    ADD CONSTRAINT spillway_batches_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.spillway_requests
    ADD CONSTRAINT spillway_requests_pkey PRIMARY KEY (stream, key);
ALTER TABLE ONLY public.spillway_spools
    ADD CONSTRAINT spillway_spools_pkey PRIMARY KEY (id);
CREATE INDEX spillway_requests_expires_at ON public.spillway_requests USING btree (expires_at);
