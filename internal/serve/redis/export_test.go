package redis

import (
	"log/slog"
	"time"
)

// patience is a timeout of commands that only a hang reaches, on a slow machine too.
const patience = time.Minute

// OpenPatient is Open with patience instead of the timeouts.
func OpenPatient(url string, log *slog.Logger) (*DB, error) {
	return open(func() (string, error) { return url, nil }, log, patience, patience)
}

// Patient returns cfg with patience instead of the timeouts that it does not set.
func Patient(cfg PopupConfig) PopupConfig {
	cfg.commandTimeout = patience
	if cfg.Timeout == 0 {
		cfg.Timeout = patience
	}
	return cfg
}
