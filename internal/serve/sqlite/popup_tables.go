package sqlite

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/popup"
)

// popupTables are created if they are missing. Times are in milliseconds since 1970; a
// NULL time in popup_state and popup_events means never.
const popupTables = `CREATE TABLE IF NOT EXISTS popup_campaigns (
	id INTEGER PRIMARY KEY,
	name TEXT NOT NULL,
	placement TEXT NOT NULL,
	status TEXT NOT NULL,
	version INTEGER NOT NULL,
	campaign TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS popup_version (
	id INTEGER PRIMARY KEY CHECK (id = 1),
	version INTEGER NOT NULL
);
INSERT INTO popup_version (id, version) VALUES (1, 0) ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS popup_events (
	id BLOB NOT NULL UNIQUE,
	user_id TEXT NOT NULL,
	placement TEXT NOT NULL,
	sequence INTEGER NOT NULL,
	kind INTEGER NOT NULL,
	campaign_id INTEGER NOT NULL,
	shown_at INTEGER NOT NULL,
	at INTEGER NOT NULL,
	next_at INTEGER,
	variant INTEGER NOT NULL,
	first INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS popup_state (
	user_id TEXT NOT NULL,
	placement TEXT NOT NULL,
	sequence INTEGER NOT NULL,
	kind INTEGER NOT NULL,
	campaign_id INTEGER NOT NULL,
	at INTEGER NOT NULL,
	next_at INTEGER,
	event_id BLOB NOT NULL,
	state BLOB NOT NULL,
	PRIMARY KEY (user_id, placement)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS popup_counts (
	campaign_id INTEGER NOT NULL,
	kind INTEGER NOT NULL,
	events INTEGER NOT NULL,
	PRIMARY KEY (campaign_id, kind)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS popup_hours (
	campaign_id INTEGER NOT NULL,
	hour INTEGER NOT NULL,
	variant INTEGER NOT NULL,
	kind INTEGER NOT NULL,
	events INTEGER NOT NULL,
	users INTEGER NOT NULL,
	PRIMARY KEY (campaign_id, hour, variant, kind)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS popup_identity (
	id INTEGER PRIMARY KEY CHECK (id = 1),
	identity TEXT NOT NULL,
	format INTEGER NOT NULL DEFAULT 1
);
INSERT INTO popup_identity (id, identity) VALUES (1, lower(hex(randomblob(16)))) ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS popup_history (
	campaign_id INTEGER NOT NULL,
	version INTEGER NOT NULL,
	at INTEGER NOT NULL,
	who TEXT NOT NULL,
	campaign TEXT NOT NULL,
	PRIMARY KEY (campaign_id, version)
);
CREATE TABLE IF NOT EXISTS popup_lists (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	name TEXT NOT NULL,
	version INTEGER NOT NULL DEFAULT 0,
	size INTEGER NOT NULL DEFAULT 0,
	state INTEGER NOT NULL DEFAULT 0,
	touched_at INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS popup_list_users (
	list_id INTEGER NOT NULL,
	user_id TEXT NOT NULL,
	PRIMARY KEY (list_id, user_id)
) WITHOUT ROWID;`

// EnsureTables creates the tables that are missing, and refuses tables of a newer version.
func (p *Popups) EnsureTables(ctx context.Context) error {
	err := p.transaction(ctx, func(conn *sqlite.Conn) error {
		for sql := range strings.SplitSeq(popupTables, ";") {
			if strings.TrimSpace(sql) == "" {
				continue
			}
			if err := sqlitex.ExecuteTransient(conn, sql, nil); err != nil {
				return err
			}
		}
		format, err := integer(conn, "SELECT COALESCE(MAX(format), 1) FROM popup_identity")
		if err != nil {
			return err
		}
		return popup.CheckFormat(strconv.FormatInt(format, 10))
	})
	if err != nil {
		return fmt.Errorf("prepare the tables popup_*: %w", err)
	}
	return nil
}
