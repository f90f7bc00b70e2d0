-- What the programs read: spillway's campaigns, and the same for naive. 50 campaigns: 10 cities x 5 ages.
CREATE DATABASE IF NOT EXISTS popups;
CREATE USER IF NOT EXISTS app@'%';
GRANT ALL ON popups.* TO app@'%';
CREATE TABLE IF NOT EXISTS popups.users (id BIGINT PRIMARY KEY, name VARCHAR(40) NOT NULL, city VARCHAR(20) NOT NULL, age INT NOT NULL) ENGINE=InnoDB;
INSERT INTO popups.users SELECT seq, CONCAT('user ', seq), CONCAT('c', seq % 10), 20 + seq % 50 FROM popups.seq_1_to_1000000 WHERE NOT EXISTS (SELECT 1 FROM popups.users LIMIT 1);
CREATE TABLE IF NOT EXISTS popups.campaigns (id INT PRIMARY KEY, payload TEXT NOT NULL, city VARCHAR(20) NOT NULL, channel VARCHAR(20) NOT NULL, age_from INT NOT NULL, age_before INT NOT NULL, vip BOOLEAN NOT NULL) ENGINE=InnoDB;
INSERT IGNORE INTO popups.campaigns SELECT seq, CONCAT('{"title":"Offer ', seq, '"}'), CONCAT('c', (seq - 1) DIV 5), 'app', 20 + (seq - 1) % 5 * 10, 30 + (seq - 1) % 5 * 10, false FROM popups.seq_1_to_50;
CREATE TABLE IF NOT EXISTS popups.shows (id BIGINT AUTO_INCREMENT PRIMARY KEY, user_id BIGINT NOT NULL, campaign_id INT NOT NULL, shown_at DATETIME(3) NOT NULL, clicked_at DATETIME(3), KEY user_shows (user_id, shown_at)) ENGINE=InnoDB;
TRUNCATE popups.shows;
INSERT INTO popups.shows (user_id, campaign_id, shown_at) SELECT seq, 1, UTC_TIMESTAMP(3) FROM popups.seq_1_to_1000000;
DROP TABLE IF EXISTS popups.popup_events, popups.popup_state, popups.popup_counts, popups.popup_holder;
CREATE TABLE IF NOT EXISTS popups.popup_campaigns ( id INT NOT NULL PRIMARY KEY, name VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, placement VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, status VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, version BIGINT NOT NULL, campaign MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL ) ENGINE=InnoDB;
CREATE TABLE IF NOT EXISTS popups.popup_version ( id TINYINT NOT NULL PRIMARY KEY, version BIGINT NOT NULL ) ENGINE=InnoDB;
INSERT IGNORE INTO popups.popup_version VALUES (1, 1);
INSERT IGNORE INTO popups.popup_campaigns SELECT seq, CONCAT('offer ', seq), 'home', 'active', 1, JSON_OBJECT('order', seq, 'payload', JSON_OBJECT('title', CONCAT('Offer ', seq)), 'target', CONCAT('city == "c', (seq - 1) DIV 5, '" and channel == "app" and age >= ', 20 + (seq - 1) % 5 * 10, ' and age < ', 30 + (seq - 1) % 5 * 10, ' and vip == false'), 'rollout', 100, 'repeat_after', '87600h', 'quiet_click', '24h', 'quiet_dismiss', '24h') FROM popups.seq_1_to_50;
-- 1,000,000 users saw campaign 1 on 2026-01-01. The last column is that state as spillway keeps it.
CREATE TABLE popups.popup_state ( user_id VARBINARY(128) NOT NULL, placement VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, sequence BIGINT NOT NULL, kind TINYINT NOT NULL, campaign_id INT NOT NULL, at DATETIME(3) NOT NULL, next_at DATETIME(3), event_id BINARY(16) NOT NULL, state VARBINARY(16384) NOT NULL, PRIMARY KEY (user_id, placement) ) ENGINE=InnoDB;
INSERT INTO popups.popup_state SELECT seq, 'home', 1, 1, 1, '2026-01-01', '2035-12-30', UNHEX(MD5(seq)), x'01010101000180a0d5edee66008080b3bc9c7900' FROM popups.seq_1_to_1000000 ORDER BY CAST(seq AS CHAR);
