-- The table of `spillway seed games`. How this file is read is told at the top of
-- postgres.sql. Its index is chosen with the data set.

--- tables
CREATE TABLE game_record (
    app_id        varchar(32) NOT NULL,
    token         varchar(64) NOT NULL,
    game_match_id varchar(32) NOT NULL,
    user_id       varchar(32) NOT NULL,
    nickname      varchar(64) NOT NULL,
    device_id     varchar(64) NOT NULL,
    prize_grade   int NOT NULL,
    start_time    bigint NOT NULL,
    score         int NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='Results of matches';
