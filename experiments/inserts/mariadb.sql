CREATE DATABASE IF NOT EXISTS freight;
CREATE USER IF NOT EXISTS app@'%';
GRANT ALL ON freight.* TO app@'%';
CREATE TABLE IF NOT EXISTS freight.positions (
    id BIGINT AUTO_INCREMENT PRIMARY KEY, device_id BIGINT NOT NULL, recorded_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    latitude DOUBLE, longitude DOUBLE, speed DOUBLE) ENGINE=InnoDB;
TRUNCATE TABLE freight.positions;
DROP TABLE IF EXISTS freight.spillway_requests, freight.spillway_batches;
