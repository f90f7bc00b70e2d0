CREATE TABLE IF NOT EXISTS positions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, device_id bigint NOT NULL, recorded_at timestamptz NOT NULL DEFAULT now(),
    latitude double precision, longitude double precision, speed double precision);
TRUNCATE positions;
DROP TABLE IF EXISTS spillway_requests, spillway_batches; -- keys of earlier runs would be known
