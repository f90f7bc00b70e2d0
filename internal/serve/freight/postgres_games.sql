-- The table of `spillway seed games`. How this file is read is told at the top of
-- postgres.sql. Its index is chosen with the data set.

--- tables
CREATE TABLE game_record (
    app_id        text NOT NULL,
    token         text NOT NULL,
    game_match_id text NOT NULL,
    user_id       text NOT NULL,
    nickname      text NOT NULL,
    device_id     text NOT NULL,
    prize_grade   integer NOT NULL,
    start_time    bigint NOT NULL,
    score         integer NOT NULL
);
COMMENT ON TABLE game_record IS 'Results of matches';
