-- The schema on SQLite. How this file is read is told at the top
-- of postgres.sql. Times are text, 'YYYY-MM-DD HH:MM:SS'.

--- registry
CREATE TABLE IF NOT EXISTS spillway_schema (
    name       text NOT NULL PRIMARY KEY,
    version    integer NOT NULL,
    applied_at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP,
    dataset    text NOT NULL
);

--- freight tables
CREATE TABLE users (
    id         integer NOT NULL PRIMARY KEY,
    nickname   text NOT NULL,
    mobileno   text NOT NULL,
    createtime timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE TABLE orders (
    id         integer NOT NULL PRIMARY KEY,
    createtime timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP,
    users_id   integer NOT NULL,
    goods_name text NOT NULL
);
CREATE TABLE positions (
    id          integer NOT NULL PRIMARY KEY,
    device_id   integer NOT NULL,
    recorded_at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP,
    latitude    real,
    longitude   real,
    speed       real
);

--- freight indexes
CREATE UNIQUE INDEX users_mobileno_key ON users (mobileno);
CREATE INDEX users_createtime_idx ON users (createtime);
CREATE INDEX orders_createtime_idx ON orders (createtime);
CREATE INDEX orders_users_id_idx ON orders (users_id);

--- games tables
CREATE TABLE game_record (
    app_id        text NOT NULL,
    token         text NOT NULL,
    game_match_id text NOT NULL,
    user_id       text NOT NULL,
    nickname      text NOT NULL,
    device_id     text NOT NULL,
    prize_grade   integer NOT NULL,
    start_time    integer NOT NULL,
    score         integer NOT NULL
);
