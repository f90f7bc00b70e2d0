package redis

import (
	"cmp"
	"log/slog"
	"time"
)

// patience is a timeout of commands that only a hang reaches, on a slow machine too.
const patience = time.Minute

// OpenPatient is Open with patience instead of the timeouts.
func OpenPatient(url string, log *slog.Logger) (*DB, error) {
	return open(func() (string, error) { return url, nil }, log, patience, patience)
}

// Patient returns cfg with patience instead of the timeouts that it does not set, and with what the configuration has
// by default.
func Patient(cfg PopupConfig) PopupConfig {
	cfg.commandTimeout, cfg.Timeout = patience, cmp.Or(cfg.Timeout, patience)
	cfg.Namespace, cfg.BacklogMax = cmp.Or(cfg.Namespace, "spillway"), cmp.Or(cfg.BacklogMax, 4_000_000)
	return cfg
}
