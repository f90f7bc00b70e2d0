package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"spillway/internal/serve/popup"
)

// popupTables are the tables of popups. A NULL time in popup_state and popup_events means never.
var popupTables = [...]ownTable{
	{"popup_campaigns", `CREATE TABLE IF NOT EXISTS popup_campaigns (
	id integer PRIMARY KEY,
	name text NOT NULL,
	placement text NOT NULL,
	status text NOT NULL,
	version bigint NOT NULL,
	campaign text NOT NULL
);`},
	{"popup_version", `CREATE TABLE IF NOT EXISTS popup_version (
	id smallint PRIMARY KEY DEFAULT 1 CHECK (id = 1),
	version bigint NOT NULL
);
INSERT INTO popup_version (version) VALUES (0) ON CONFLICT DO NOTHING;`},
	{"popup_events", `CREATE TABLE IF NOT EXISTS popup_events (
	id uuid PRIMARY KEY,
	user_id text COLLATE "C" NOT NULL,
	placement text COLLATE "C" NOT NULL,
	sequence bigint NOT NULL,
	kind smallint NOT NULL,
	campaign_id integer NOT NULL,
	shown_at timestamptz NOT NULL,
	at timestamptz NOT NULL,
	next_at timestamptz,
	variant smallint NOT NULL,
	first boolean NOT NULL
);`},
	{"popup_state", `CREATE TABLE IF NOT EXISTS popup_state (
	user_id text COLLATE "C" NOT NULL,
	placement text COLLATE "C" NOT NULL,
	sequence bigint NOT NULL,
	kind smallint NOT NULL,
	campaign_id integer NOT NULL,
	at timestamptz NOT NULL,
	next_at timestamptz,
	event_id uuid NOT NULL,
	state bytea NOT NULL,
	PRIMARY KEY (user_id, placement)
) WITH (fillfactor = 80);`},
	{"popup_counts", `CREATE TABLE IF NOT EXISTS popup_counts (
	campaign_id integer NOT NULL,
	kind smallint NOT NULL,
	slot smallint NOT NULL,
	events bigint NOT NULL,
	PRIMARY KEY (campaign_id, kind, slot)
) WITH (fillfactor = 50);`},
	{"popup_hours", `CREATE TABLE IF NOT EXISTS popup_hours (
	campaign_id integer NOT NULL,
	hour timestamptz NOT NULL,
	variant smallint NOT NULL,
	kind smallint NOT NULL,
	slot smallint NOT NULL,
	events bigint NOT NULL,
	users bigint NOT NULL,
	PRIMARY KEY (campaign_id, hour, variant, kind, slot)
) WITH (fillfactor = 80);`},
	{"popup_holder", `CREATE TABLE IF NOT EXISTS popup_holder (
	id smallint PRIMARY KEY DEFAULT 1 CHECK (id = 1),
	token uuid NOT NULL,
	holder text NOT NULL,
	since timestamptz NOT NULL DEFAULT now()
);`},
	{"popup_identity", `CREATE TABLE IF NOT EXISTS popup_identity (
	id smallint PRIMARY KEY DEFAULT 1 CHECK (id = 1),
	identity text NOT NULL,
	format smallint NOT NULL DEFAULT 1
);`},
	{"popup_history", `CREATE TABLE IF NOT EXISTS popup_history (
	campaign_id integer NOT NULL,
	version bigint NOT NULL,
	at timestamptz NOT NULL DEFAULT now(),
	who text NOT NULL,
	campaign text NOT NULL,
	PRIMARY KEY (campaign_id, version)
);`},
	{"popup_lists", `CREATE TABLE IF NOT EXISTS popup_lists (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name text COLLATE "C" NOT NULL,
	version bigint NOT NULL DEFAULT 0,
	size bigint NOT NULL DEFAULT 0,
	state smallint NOT NULL DEFAULT 0,
	touched_at timestamptz NOT NULL DEFAULT now()
);`},
	{"popup_list_users", `CREATE TABLE IF NOT EXISTS popup_list_users (
	list_id bigint NOT NULL,
	user_id text COLLATE "C" NOT NULL,
	PRIMARY KEY (list_id, user_id)
);`},
}

// EnsureTables creates the tables that are missing, each in a transaction of its own, checks
// the privileges, and refuses tables of a newer version. An error of a missing right has the
// statement to run.
func (p *Popups) EnsureTables(ctx context.Context) error {
	err := p.withConn(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if err := createMissing(ctx, conn.PgConn(), popupTables[:]); err != nil {
			return err
		}
		if err := checkRights(ctx, conn.PgConn(), popupRights); err != nil {
			return err
		}
		rows, err := texts(ctx, conn.PgConn(), "SELECT COALESCE(MAX(format), 1) FROM popup_identity")
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
