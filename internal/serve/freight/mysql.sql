-- The schema on MySQL and MariaDB. How this file is read is told at the
-- top of postgres.sql. Tables are clustered by their primary key, which is therefore made
-- with them.

--- registry
CREATE TABLE IF NOT EXISTS spillway_schema (
    name       varchar(64) NOT NULL PRIMARY KEY,
    version    int NOT NULL,
    applied_at datetime NOT NULL DEFAULT CURRENT_TIMESTAMP,
    dataset    varchar(255) NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='What Spillway made in this database: one row a component';

--- freight tables
CREATE TABLE users (
    id         int NOT NULL AUTO_INCREMENT PRIMARY KEY,
    nickname   varchar(64) NOT NULL,
    mobileno   varchar(32) NOT NULL,
    createtime datetime NOT NULL DEFAULT CURRENT_TIMESTAMP COMMENT 'Time of registration'
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='Users of the freight app';
CREATE TABLE orders (
    id         int NOT NULL AUTO_INCREMENT PRIMARY KEY,
    createtime datetime NOT NULL DEFAULT CURRENT_TIMESTAMP COMMENT 'Time of the order',
    users_id   int NOT NULL COMMENT 'The id of who ordered',
    goods_name varchar(255) NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='Freight orders';
CREATE TABLE positions (
    id          bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    device_id   bigint NOT NULL,
    recorded_at datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'In UTC, where Spillway stores it',
    latitude    double,
    longitude   double,
    speed       double COMMENT 'In km/h'
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='Where the trucks of the freight app were';

--- freight indexes
ALTER TABLE users ADD UNIQUE KEY users_mobileno_key (mobileno), ADD KEY users_createtime_idx (createtime);
ALTER TABLE orders ADD KEY orders_createtime_idx (createtime), ADD KEY orders_users_id_idx (users_id);

--- games tables
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
