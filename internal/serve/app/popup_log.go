package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"spillway/internal/serve/config"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/spool"
)

const (
	logQueueBytes = 64 << 20 // of events that wait for the next fsync
	logGroupBytes = 1 << 20  // of events that are made durable together
	logDrainBytes = 1 << 20  // of events that the database is given at once
)

// EventLog keeps events in a local file until the database has them. It is a
// popup.Recorder once open has returned.
type EventLog struct {
	cfg  *config.Popups
	name string
	log  *slog.Logger

	spool atomic.Pointer[spool.Spool] // nil before open
}

// NewEventLog returns a closed EventLog of the file name.
func NewEventLog(cfg *config.Popups, name string, log *slog.Logger) *EventLog {
	return &EventLog{cfg: cfg, name: name, log: log}
}

// PopupSpoolPath returns the file of the popups' events in a data directory.
func PopupSpoolPath(data string) string { return filepath.Join(data, "popups.spool") }

// Open opens the file and yields the state after each event that the database may not
// have, in their order.
func (l *EventLog) Open(ctx context.Context, yield func(popup.Key, popup.State) error) (int, error) {
	waiting, err := l.openFile(ctx, yield)
	if errors.Is(err, spool.ErrDamaged) {
		err = fmt.Errorf("%s: %w; %s", l.name, err, l.repair())
	}
	return waiting, err
}

// repair says what to do about a damaged file.
func (l *EventLog) repair() string {
	return fmt.Sprintf("spillway spool repair --popups --data %s says what is lost, and gives it up with --yes", filepath.Dir(l.name))
}

func (l *EventLog) openFile(ctx context.Context, yield func(popup.Key, popup.State) error) (waiting int, err error) {
	opened, err := spool.Open(ctx, l.name, spool.Config{
		Bytes: int64(l.cfg.SpoolBytes), QueueBytes: logQueueBytes, GroupBytes: logGroupBytes, Log: l.log,
	})
	if err != nil {
		return 0, err
	}
	l.spool.Store(opened)
	err = opened.Waiting(ctx, spoolName, func(group queue.Group) error {
		events, _ := decodeEvents(group)
		for _, e := range events {
			if err := yield(e.Key, e.State); err != nil {
				return fmt.Errorf("restore from %s: %w", l.name, err)
			}
		}
		waiting += len(events)
		return nil
	})
	return waiting, err
}

// Record implements popup.Recorder.
func (l *EventLog) Record(ctx context.Context, events ...popup.Event) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	for _, e := range events {
		payload, err := popup.AppendEvent(make([]byte, 0, 128), e)
		if err != nil {
			return err
		}
		if _, err := l.spool.Load().Append(ctx, spoolName, queue.Entry{Payload: payload, Rows: 1}); err != nil {
			return errSpool(err)
		}
	}
	return nil
}

// drain takes events to the database until ctx ends, or the file is found damaged.
func (l *EventLog) drain(ctx context.Context, tables popupTables) {
	err := l.spool.Load().Drain(ctx, spoolName, logDrainBytes, eventTables{tables})
	if err != nil {
		l.log.Error("popup events do not reach the database any more: stop, and repair the event log", "error", err, "repair", l.repair())
	}
}

// eventTables is the tables of a database as the destination of events.
type eventTables struct{ tables popupTables }

// StoreGroups implements queue.Destination.
func (t eventTables) StoreGroups(ctx context.Context, groups []queue.Group) (queue.Stored, error) {
	var events []popup.Event
	stored := queue.Stored{Groups: len(groups)}
	for _, group := range groups {
		good, dead := decodeEvents(group)
		events, stored.Dead = append(events, good...), append(stored.Dead, dead...)
	}
	last := groups[len(groups)-1]
	return stored, t.tables.Apply(ctx, popup.Mark{Queue: last.Spool, Sequence: last.Sequence}, events)
}

// decodeEvents returns the events of a group, and what is none.
func decodeEvents(group queue.Group) ([]popup.Event, []queue.DeadLetter) {
	var dead []queue.DeadLetter
	events := make([]popup.Event, 0, len(group.Entries))
	for _, entry := range group.Entries {
		e, err := popup.DecodeEvent(entry.Payload)
		if err != nil {
			dead = append(dead, queue.DeadLetter{
				Name: group.Name, Sequence: group.Sequence, At: entry.At, Rows: entry.Rows, Reason: err.Error(), Payload: entry.Payload,
			})
			continue
		}
		events = append(events, e)
	}
	return events, dead
}

// PopupEventJSON returns an event as a JSON object, for people to read; for a payload that
// holds none, a string of base64.
func PopupEventJSON(payload []byte) ([]json.RawMessage, error) {
	var shown any = payload
	if e, err := popup.DecodeEvent(payload); err == nil {
		shown = struct {
			Kind      string    `json:"kind"`
			User      string    `json:"user"`
			Placement string    `json:"placement"`
			Sequence  uint64    `json:"sequence"`
			Campaign  uint32    `json:"campaign"`
			ShownAt   time.Time `json:"shown_at"`
			At        time.Time `json:"at"`
		}{e.Kind.String(), e.Key.User, e.Key.Placement, e.Sequence, uint32(e.Campaign), e.ShownAt.UTC(), e.At.UTC()}
	}
	text, err := json.Marshal(shown)
	return []json.RawMessage{text}, err
}

// Close makes durable what was accepted and closes the file. The drain has ended.
func (l *EventLog) Close() error {
	if opened := l.spool.Load(); opened != nil {
		return opened.Close()
	}
	return nil
}

var errLogClosed = errors.New("the event log is not open yet")

func (l *EventLog) ready() error {
	opened := l.spool.Load()
	if opened == nil {
		return errLogClosed
	}
	return opened.Ready()
}

// stats returns the figures of the events that wait.
func (l *EventLog) stats() (spool.NameStats, bool) {
	opened := l.spool.Load()
	if opened == nil {
		return spool.NameStats{}, false
	}
	for _, s := range opened.Stats().Names {
		if s.Name == spoolName {
			return s, true
		}
	}
	return spool.NameStats{}, true
}

// limitedStore bounds how long a swap takes. A read is bounded by the store.
type limitedStore struct {
	popup.Store
	timeout time.Duration
}

// Swap implements popup.Store.
func (s limitedStore) Swap(ctx context.Context, key popup.Key, version uint64, next popup.State, event popup.Event) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Store.Swap(ctx, key, version, next, event)
}
