CREATE TABLE `direct` (
  `id` bigint(20) NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
INSERT INTO `direct` VALUES
(1),
(2);
CREATE TABLE `popup_campaigns` (
  `id` int(11) NOT NULL,
  `name` varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  `placement` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `position` int(11) NOT NULL,
  `payload` mediumtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  `target` mediumtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  `status` varchar(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `starts_at` datetime(3) DEFAULT NULL,
  `ends_at` datetime(3) DEFAULT NULL,
  `repeat_after` bigint(20) NOT NULL,
  `quiet_click` bigint(20) NOT NULL,
  `quiet_dismiss` bigint(20) NOT NULL,
  `cap` int(11) NOT NULL,
  `version` bigint(20) NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
INSERT INTO `popup_campaigns` VALUES
(1,'all','home',10,'{"n":1}','','active',NULL,NULL,0,3600000,0,0,1);
CREATE TABLE `popup_counts` (
  `campaign_id` int(11) NOT NULL,
  `kind` tinyint(4) NOT NULL,
  `slot` tinyint(4) NOT NULL,
  `events` bigint(20) NOT NULL,
  PRIMARY KEY (`campaign_id`,`kind`,`slot`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
INSERT INTO `popup_counts` VALUES
(1,1,1,1);
CREATE TABLE `popup_events` (
  `id` binary(16) NOT NULL,
  `user_id` varbinary(128) NOT NULL,
  `placement` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `sequence` bigint(20) NOT NULL,
  `kind` tinyint(4) NOT NULL,
  `campaign_id` int(11) NOT NULL,
  `shown_at` datetime(3) NOT NULL,
  `at` datetime(3) NOT NULL,
  `next_at` datetime(3) DEFAULT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
INSERT INTO `popup_events` VALUES
(0x01A20374A278BACD44A76483AF029129,0x37,'home',1,1,1,'2026-11-22 13:31:45.144','2026-11-22 13:31:45.144','2026-11-23 13:31:45.144');
CREATE TABLE `popup_holder` (
  `id` tinyint(4) NOT NULL,
  `token` binary(16) NOT NULL,
  `holder` varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL,
  `since` datetime(3) NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
INSERT INTO `popup_holder` VALUES
(1,0x734685E2AEA4CD60460A27F30EF36F99,'process 16187 on vm','2026-11-22 13:31:47.938');
CREATE TABLE `popup_queues` (
  `queue` binary(16) NOT NULL,
  `sequence` bigint(20) NOT NULL,
  PRIMARY KEY (`queue`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
INSERT INTO `popup_queues` VALUES
(0x634E3C47AD4AFD9BDEFEEC90CB3E0126,1);
CREATE TABLE `popup_state` (
  `user_id` varbinary(128) NOT NULL,
  `placement` varchar(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `sequence` bigint(20) NOT NULL,
  `kind` tinyint(4) NOT NULL,
  `campaign_id` int(11) NOT NULL,
  `at` datetime(3) NOT NULL,
  `next_at` datetime(3) DEFAULT NULL,
  `event_id` binary(16) NOT NULL,
  `state` varbinary(512) NOT NULL,
  PRIMARY KEY (`user_id`,`placement`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
INSERT INTO `popup_state` VALUES
(0x37,'home',1,1,1,'2026-11-22 13:31:45.144','2026-11-23 13:31:45.144',0x01A20374A278BACD44A76483AF029129,0x0101010114F089A5B7C06800F0F9D789C168);
CREATE TABLE `popup_version` (
  `id` tinyint(4) NOT NULL,
  `version` bigint(20) NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
INSERT INTO `popup_version` VALUES
(1,1);
CREATE TABLE `readings` (
  `id` bigint(20) NOT NULL,
  `value` double DEFAULT NULL CHECK (`value` <> 13),
  `note` varchar(20) DEFAULT NULL
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
INSERT INTO `readings` VALUES
(1,NULL,'none'),
(2,NULL,'é'),
(4,NULL,'none'),
(5,0.5,'none'),
(7,NULL,'none');
CREATE TABLE `spillway_batches` (
  `id` binary(16) NOT NULL,
  `created_at` datetime(6) NOT NULL,
  `results` longblob DEFAULT NULL,
  PRIMARY KEY (`id`),
  KEY `created_at` (`created_at`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
INSERT INTO `spillway_batches` VALUES
(0x37FF7366F30F7B708AEDCFC76198D6FF,'2026-11-22 13:31:45.129907',NULL),
(0xDC113A4C7BBDA98AD0428163FCFEE4FB,'2026-11-22 13:31:45.140626',NULL);
CREATE TABLE `spillway_requests` (
  `stream` varbinary(255) NOT NULL,
  `key` varbinary(255) NOT NULL,
  `fingerprint` binary(32) NOT NULL,
  `outcome` longblob NOT NULL,
  `expires_at` datetime(6) NOT NULL,
  PRIMARY KEY (`stream`,`key`),
  KEY `expires_at` (`expires_at`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
INSERT INTO `spillway_requests` VALUES
(0x2F646972656374,0x6431,0x037C9214EEF74CC3887F3A4F085B4E17D76280DAFD273B0EE160C09C4BA1CFD4,0x7B2273746F726564223A317D,'2026-11-23 13:31:45.129404'),
(0x2F72656164696E6773,0x6B31,0x037C9214EEF74CC3887F3A4F085B4E17D76280DAFD273B0EE160C09C4BA1CFD4,0x7B2273746F726564223A317D,'2026-11-23 13:31:44.998992'),
(0x2F72656164696E6773,0x6B34,0xFE94CCBD074BB18B213F513152E3E3D0503E3746292DF1D92BDD30AA4AAAEE76,0x7B2273746F726564223A317D,'2026-11-23 13:31:46.497961'),
(0x2F72656164696E6773,0x6B36,0x21411998E642148768E2851950C93E8445FFD49167DF1E68AA2A75F5E50E89C6,0x7B2273746F726564223A312C2272656675736564223A5B7B22696E646578223A302C22726561736F6E223A22434F4E53545241494E54206072656164696E67732E76616C756560206661696C656420666F72206074657374602E6072656164696E677360227D5D7D,'2026-11-23 13:31:46.582414');
CREATE TABLE `spillway_spools` (
  `id` binary(16) NOT NULL,
  `stream` varbinary(255) NOT NULL,
  `after` bigint(20) unsigned NOT NULL,
  `sequence` bigint(20) unsigned NOT NULL,
  `results` longblob DEFAULT NULL,
  `updated_at` datetime(6) NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci;
INSERT INTO `spillway_spools` VALUES
(0xCCC1610DB7667C421840E5F95F055C0D,0x2F72656164696E6773,3,6,0x7B2264656164223A5B7B2273657175656E6365223A362C22656E747279223A302C22726F77223A302C22726561736F6E223A22434F4E53545241494E54206072656164696E67732E76616C756560206661696C656420666F72206074657374602E6072656164696E677360227D5D7D,'2026-11-22 13:31:47.931870');
