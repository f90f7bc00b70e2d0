package mysql

import (
	"context"
	"fmt"
	"strings"

	"spillway/internal/serve/popup"
)

// popupTables are created if they are missing. Without the right to create tables, an
// administrator creates them. User ids are bytes, so that no collation merges two of them.
// Times are in UTC; a NULL time in popup_state and popup_events means never. The names are
// those of popupNames.
var popupTables = []string{
	`CREATE TABLE IF NOT EXISTS popup_campaigns (
	id INT NOT NULL PRIMARY KEY,
	name VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
	placement VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	status VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	version BIGINT NOT NULL,
	campaign MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL
) ENGINE=InnoDB`,
	`CREATE TABLE IF NOT EXISTS popup_version (
	id TINYINT NOT NULL PRIMARY KEY,
	version BIGINT NOT NULL
) ENGINE=InnoDB`,
	`CREATE TABLE IF NOT EXISTS popup_events (
	id BINARY(16) NOT NULL PRIMARY KEY,
	user_id VARBINARY(128) NOT NULL,
	placement VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	sequence BIGINT NOT NULL,
	kind TINYINT NOT NULL,
	campaign_id INT NOT NULL,
	shown_at DATETIME(3) NOT NULL,
	at DATETIME(3) NOT NULL,
	next_at DATETIME(3),
	variant TINYINT UNSIGNED NOT NULL,
	` + "`first`" + ` TINYINT NOT NULL
) ENGINE=InnoDB`,
	`CREATE TABLE IF NOT EXISTS popup_state (
	user_id VARBINARY(128) NOT NULL,
	placement VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	sequence BIGINT NOT NULL,
	kind TINYINT NOT NULL,
	campaign_id INT NOT NULL,
	at DATETIME(3) NOT NULL,
	next_at DATETIME(3),
	event_id BINARY(16) NOT NULL,
	state VARBINARY(16384) NOT NULL,
	PRIMARY KEY (user_id, placement)
) ENGINE=InnoDB`,
	`CREATE TABLE IF NOT EXISTS popup_counts (
	campaign_id INT NOT NULL,
	kind TINYINT NOT NULL,
	slot TINYINT NOT NULL,
	events BIGINT NOT NULL,
	PRIMARY KEY (campaign_id, kind, slot)
) ENGINE=InnoDB`,
	`CREATE TABLE IF NOT EXISTS popup_hours (
	campaign_id INT NOT NULL,
	hour DATETIME NOT NULL,
	variant TINYINT UNSIGNED NOT NULL,
	kind TINYINT NOT NULL,
	slot TINYINT NOT NULL,
	events BIGINT NOT NULL,
	users BIGINT NOT NULL,
	PRIMARY KEY (campaign_id, hour, variant, kind, slot)
) ENGINE=InnoDB`,
	`CREATE TABLE IF NOT EXISTS popup_holder (
	id TINYINT NOT NULL PRIMARY KEY,
	token BINARY(16) NOT NULL,
	holder VARCHAR(200) CHARACTER SET utf8mb4 NOT NULL,
	since DATETIME(3) NOT NULL
) ENGINE=InnoDB`,
	`CREATE TABLE IF NOT EXISTS popup_identity (
	id TINYINT NOT NULL PRIMARY KEY,
	identity VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	format SMALLINT NOT NULL DEFAULT 1
) ENGINE=InnoDB`,
	`CREATE TABLE IF NOT EXISTS popup_history (
	campaign_id INT NOT NULL,
	version BIGINT NOT NULL,
	at DATETIME(3) NOT NULL,
	who VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
	campaign MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
	PRIMARY KEY (campaign_id, version)
) ENGINE=InnoDB`,
	`CREATE TABLE IF NOT EXISTS popup_lists (
	id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
	name VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
	version BIGINT NOT NULL DEFAULT 0,
	size BIGINT NOT NULL DEFAULT 0,
	state TINYINT NOT NULL DEFAULT 0,
	touched_at DATETIME NOT NULL
) ENGINE=InnoDB`,
	`CREATE TABLE IF NOT EXISTS popup_list_users (
	list_id BIGINT NOT NULL,
	user_id VARBINARY(128) NOT NULL,
	PRIMARY KEY (list_id, user_id)
) ENGINE=InnoDB`,
}

// popupNames are the names of popupTables.
var popupNames = []string{
	"popup_campaigns", "popup_version", "popup_events", "popup_state", "popup_counts", "popup_hours", "popup_holder", "popup_identity", "popup_history",
	"popup_lists", "popup_list_users",
}

// EnsureTables creates the tables that are missing, checks the privileges, and refuses tables
// of a newer version.
func (p *Popups) EnsureTables(ctx context.Context) error {
	err := p.withSession(ctx, func(ctx context.Context, se *session) error {
		engines, err := se.Query(ctx, "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name IN ('"+strings.Join(popupNames, "', '")+"')")
		if err != nil {
			return err
		}
		present := make(map[string]bool)
		for _, row := range engines {
			if row[1] != "InnoDB" {
				return fmt.Errorf("%s is of engine %s, which has no transactions; run ALTER TABLE %s ENGINE=InnoDB", row[0], row[1], row[0])
			}
			present[row[0]] = true
		}
		if err := createMissing(ctx, se, present, popupNames, popupTables); err != nil {
			return err
		}
		if err := checkRights(ctx, se, popupRights); err != nil {
			return err
		}
		rows, err := se.Query(ctx, "SELECT COALESCE(MAX(format), 1) FROM popup_identity")
		if err != nil {
			return err
		}
		return popup.CheckFormat(rows[0][0])
	})
	if err != nil {
		return fmt.Errorf("prepare the tables popup_*: %w", err)
	}
	return nil
}
