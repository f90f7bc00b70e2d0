
CREATE TABLE public.popup_campaigns (
    id integer NOT NULL,
    name text NOT NULL,
    placement text NOT NULL COLLATE pg_catalog."C",
    status text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    campaign text NOT NULL
);

COMMENT ON TABLE public.popup_campaigns IS 'spillway format 1';

CREATE TABLE public.popup_counts (
    campaign_id integer NOT NULL,
    kind smallint NOT NULL,
    slot smallint NOT NULL,
    events bigint NOT NULL
)
WITH (fillfactor='50');

COMMENT ON TABLE public.popup_counts IS 'spillway format 1';

CREATE TABLE public.popup_events (
    id uuid NOT NULL,
    user_id text NOT NULL COLLATE pg_catalog."C",
    placement text NOT NULL COLLATE pg_catalog."C",
    sequence bigint NOT NULL,
    kind smallint NOT NULL,
    campaign_id integer NOT NULL,
    shown_at timestamp with time zone NOT NULL,
    at timestamp with time zone NOT NULL,
    next_at timestamp with time zone,
    variant smallint NOT NULL,
    first boolean NOT NULL
);

COMMENT ON TABLE public.popup_events IS 'spillway format 1';

CREATE TABLE public.popup_history (
    campaign_id integer NOT NULL,
    version bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    who text NOT NULL,
    address text NOT NULL,
    request text NOT NULL,
    content text NOT NULL
);

COMMENT ON TABLE public.popup_history IS 'spillway format 1';

CREATE TABLE public.popup_holder (
    id smallint NOT NULL,
    token uuid NOT NULL,
    holder text NOT NULL,
    since timestamp with time zone NOT NULL
);

COMMENT ON TABLE public.popup_holder IS 'spillway format 1';

CREATE TABLE public.popup_hours (
    campaign_id integer NOT NULL,
    hour timestamp with time zone NOT NULL,
    variant smallint NOT NULL,
    kind smallint NOT NULL,
    slot smallint NOT NULL,
    events bigint NOT NULL,
    users bigint NOT NULL
)
WITH (fillfactor='80');

COMMENT ON TABLE public.popup_hours IS 'spillway format 1';

CREATE TABLE public.popup_list_parts (
    name text NOT NULL COLLATE pg_catalog."C",
    part smallint NOT NULL,
    hashes bytea NOT NULL
);

COMMENT ON TABLE public.popup_list_parts IS 'spillway format 1';

CREATE TABLE public.popup_lists (
    name text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    size bigint NOT NULL,
    at timestamp with time zone NOT NULL
);

COMMENT ON TABLE public.popup_lists IS 'spillway format 1';

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

COMMENT ON TABLE public.popup_state IS 'spillway format 1';

CREATE TABLE public.popup_version (
    id smallint NOT NULL,
    version bigint NOT NULL,
    identity text NOT NULL COLLATE pg_catalog."C"
);

COMMENT ON TABLE public.popup_version IS 'spillway format 1';

CREATE TABLE public.readings (
    id integer NOT NULL,
    note text,
    CONSTRAINT readings_note_check CHECK ((note <> 'bad'::text))
);

CREATE TABLE public.spillway_batches (
    id uuid NOT NULL,
    created_at timestamp with time zone NOT NULL,
    results bytea
);

COMMENT ON TABLE public.spillway_batches IS 'spillway format 1';

CREATE TABLE public.spillway_drained (
    spool uuid NOT NULL,
    epoch uuid NOT NULL,
    last bigint NOT NULL,
    first bigint NOT NULL,
    sums bytea NOT NULL,
    results bytea,
    created_at timestamp with time zone NOT NULL
);

COMMENT ON TABLE public.spillway_drained IS 'spillway format 1';

CREATE TABLE public.spillway_epochs (
    spool uuid NOT NULL,
    epoch uuid NOT NULL,
    stream text NOT NULL COLLATE pg_catalog."C",
    last bigint NOT NULL,
    updated_at timestamp with time zone NOT NULL
);

COMMENT ON TABLE public.spillway_epochs IS 'spillway format 1';

CREATE TABLE public.spillway_requests (
    stream text NOT NULL COLLATE pg_catalog."C",
    request_key bytea NOT NULL,
    fingerprint bytea NOT NULL,
    outcome bytea NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    accepted_at timestamp with time zone NOT NULL,
    earlier bytea
);

COMMENT ON TABLE public.spillway_requests IS 'spillway format 1';

INSERT INTO public.popup_campaigns VALUES (1, 'hello', 'home', 'active', 1, '{"id":1,"name":"hello","placement":"home","priority":0,"order":1,"payload":{"text":"hi"},"variants":[],"target":"true","zone":"","rollout":100,"holdout":0,"status":"active","testers":[],"start":null,"end":null,"repeat_after":null,"quiet_click":null,"quiet_dismiss":null,"cap":0,"again":null,"version":1,"created":"2026-11-28T18:46:10.336Z"}');

INSERT INTO public.popup_counts VALUES (1, 1, 22, 1);

INSERT INTO public.popup_events VALUES ('01a2237a-b26c-4316-b233-e7eb41adec95', '7', 'home', 1, 1, 1, '2026-11-28 18:46:13.356+00', '2026-11-28 18:46:13.356+00', '2026-11-29 18:46:13.356+00', 0, true);

INSERT INTO public.popup_history VALUES (1, 1, '2026-11-28 18:46:10.33632+00', '', '127.0.0.1', 'POST /popups/campaigns', '{"id":1,"name":"hello","placement":"home","priority":0,"order":1,"payload":{"text":"hi"},"variants":[],"target":"true","zone":"","rollout":100,"holdout":0,"status":"active","testers":[],"start":null,"end":null,"repeat_after":null,"quiet_click":null,"quiet_dismiss":null,"cap":0,"again":null,"version":1,"created":"2026-11-28T18:46:10.336Z"}');

INSERT INTO public.popup_holder VALUES (1, '695029d1-ddef-3242-91c6-0abfb6d5c396', 'process 1 on host', '2026-11-28 18:46:07.421803+00');

INSERT INTO public.popup_hours VALUES (1, '2026-11-28 18:00:00+00', 0, 1, 22, 1, 1);

INSERT INTO public.popup_state VALUES ('7', 'home', 1, 1, 1, '2026-11-28 18:46:13.356+00', '2026-11-29 18:46:13.356+00', '01a2237a-b26c-4316-b233-e7eb41adec95', '\x010101010001d8c9d5b7c46800d8b9888ac56800');

INSERT INTO public.popup_version VALUES (1, 1, 'DLFPONB7BBKHMSPQB75YWCTA5N');

INSERT INTO public.spillway_drained VALUES ('79c67753-3477-a9e5-6658-6f38693fb23f', '6437781c-a1d9-99d2-a8ec-cbdb88f53032', 1, 1, '\xd2767f3f5ee9426d4bae41b0168ad340', '\x7b2264656164223a5b7b2273657175656e6365223a312c22656e747279223a302c22726f77223a302c22726561736f6e223a226e657720726f7720666f722072656c6174696f6e205c2272656164696e67735c222076696f6c6174657320636865636b20636f6e73747261696e74205c2272656164696e67735f6e6f74655f636865636b5c22227d5d7d', '2026-11-28 18:46:09.320607+00');

INSERT INTO public.spillway_epochs VALUES ('79c67753-3477-a9e5-6658-6f38693fb23f', '6437781c-a1d9-99d2-a8ec-cbdb88f53032', '/readings', 1, '2026-11-28 18:46:09.320607+00');

ALTER TABLE ONLY public.popup_campaigns
    ADD CONSTRAINT popup_campaigns_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.popup_counts
    ADD CONSTRAINT popup_counts_pkey PRIMARY KEY (campaign_id, kind, slot);

ALTER TABLE ONLY public.popup_events
    ADD CONSTRAINT popup_events_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.popup_history
    ADD CONSTRAINT popup_history_pkey PRIMARY KEY (campaign_id, version);

ALTER TABLE ONLY public.popup_holder
    ADD CONSTRAINT popup_holder_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.popup_hours
    ADD CONSTRAINT popup_hours_pkey PRIMARY KEY (campaign_id, hour, variant, kind, slot);

ALTER TABLE ONLY public.popup_list_parts
    ADD CONSTRAINT popup_list_parts_pkey PRIMARY KEY (name, part);

ALTER TABLE ONLY public.popup_lists
    ADD CONSTRAINT popup_lists_pkey PRIMARY KEY (name);

ALTER TABLE ONLY public.popup_state
    ADD CONSTRAINT popup_state_pkey PRIMARY KEY (user_id, placement);

ALTER TABLE ONLY public.popup_version
    ADD CONSTRAINT popup_version_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.readings
    ADD CONSTRAINT readings_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.spillway_batches
    ADD CONSTRAINT spillway_batches_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.spillway_drained
    ADD CONSTRAINT spillway_drained_pkey PRIMARY KEY (spool, epoch, last);

ALTER TABLE ONLY public.spillway_epochs
    ADD CONSTRAINT spillway_epochs_pkey PRIMARY KEY (spool, epoch);

ALTER TABLE ONLY public.spillway_requests
    ADD CONSTRAINT spillway_requests_pkey PRIMARY KEY (stream, request_key);

CREATE INDEX popup_history_at ON public.popup_history USING btree (at);

CREATE INDEX spillway_drained_created_at ON public.spillway_drained USING btree (created_at);

CREATE INDEX spillway_requests_expires_at ON public.spillway_requests USING btree (expires_at);

