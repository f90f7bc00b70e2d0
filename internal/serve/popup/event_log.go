package popup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"spillway/internal/serve/queue"
)

// The spool of popup events: its file in a data directory, and the name of its entries.
const (
	spoolFile  = "popups.spool"
	spoolName  = "popups"
	drainBytes = 1 << 20 // given to the database at once
)

// SpoolPath returns the file of the event log in a data directory.
func SpoolPath(data string) string { return filepath.Join(data, spoolFile) }

// Spool keeps entries in a local file until they are drained.
type Spool interface {
	// Begin queues an entry. ready, if it is not nil, is called when Appended need not wait any more, and what it returns after it.
	Begin(ctx context.Context, name string, e queue.Entry, ready func() (wake func())) (queue.Appending, error)
	// Waiting yields the groups that were not drained, in order.
	Waiting(ctx context.Context, name string, yield func(queue.Group) error) error
	// Drain hands groups to a destination, in order, until ctx ends.
	Drain(ctx context.Context, name string, bytes int, to queue.Destination) error
}

// EventTables is where a database stores events.
type EventTables interface {
	// Apply stores events and the states after them. An event that is stored already is
	// skipped. It returns nil only after a COMMIT of its own was answered without a warning.
	// It ends no COMMIT: ctx has no deadline, and ends when the process stops.
	Apply(ctx context.Context, events []Event) error
}

// EventLog records events in a spool until the database has them.
type EventLog struct {
	spool   Spool
	tables  EventTables
	timeout time.Duration
	memory  *Memory // learns which events the database has; may be nil
}

var (
	_ Recorder          = (*EventLog)(nil)
	_ queue.Destination = (*EventLog)(nil)
)

// NewEventLog returns an EventLog over a spool, which stays the caller's. timeout bounds
// how long Record waits.
func NewEventLog(spool Spool, tables EventTables, timeout time.Duration) *EventLog {
	return &EventLog{spool: spool, tables: tables, timeout: timeout}
}

// Record implements Recorder.
func (l *EventLog) Record(ctx context.Context, event Event) error {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	a, err := l.begin(ctx, event, nil)
	if err != nil {
		return err
	}
	_, err = a.Appended(ctx)
	return described(err)
}

// begin is Record without the wait. ready is that of Spool.Begin.
func (l *EventLog) begin(ctx context.Context, event Event, ready func() (wake func())) (queue.Appending, error) {
	payload, err := AppendEvent(make([]byte, 0, 128), event)
	if err != nil {
		return nil, err
	}
	a, err := l.spool.Begin(ctx, spoolName, queue.Entry{Payload: payload, Rows: 1}, ready)
	return a, described(err)
}

// described names the limit that an error of the spool is about.
func described(err error) error {
	if full, ok := errors.AsType[*queue.Overload](err); ok {
		return fmt.Errorf("popups.%s is reached: %w", full.Limit, err)
	}
	return err
}

// Replay yields the state after each event that waits for the database, in order, and
// returns how many there are.
func (l *EventLog) Replay(ctx context.Context, yield func(Key, State) error) (int, error) {
	n := 0
	err := l.spool.Waiting(ctx, spoolName, func(group queue.Group) error {
		events, _ := decodeEvents(group)
		for _, e := range events {
			if e.Kind == KindConvert {
				continue
			}
			if err := yield(e.Key, e.State); err != nil {
				return err
			}
		}
		n += len(events)
		return nil
	})
	if err != nil {
		return n, fmt.Errorf("replay popup events: %w", err)
	}
	return n, nil
}

// Drain moves events to the database until ctx ends. It returns an error if the spool is
// damaged.
func (l *EventLog) Drain(ctx context.Context) error {
	return l.spool.Drain(ctx, spoolName, drainBytes, l)
}

// StoreGroups implements queue.Destination.
func (l *EventLog) StoreGroups(ctx context.Context, groups []queue.Group) (queue.Stored, error) {
	var events []Event
	stored := queue.Stored{Groups: len(groups)}
	for _, group := range groups {
		good, dead := decodeEvents(group)
		events, stored.Dead = append(events, good...), append(stored.Dead, dead...)
	}
	err := l.tables.Apply(ctx, events)
	if err == nil && l.memory != nil {
		l.memory.stored(events)
	}
	return stored, err
}

// decodeEvents returns the events of a group, and dead letters for entries that hold none.
func decodeEvents(group queue.Group) ([]Event, []queue.DeadLetter) {
	var dead []queue.DeadLetter
	events := make([]Event, 0, len(group.Entries))
	for _, entry := range group.Entries {
		e, err := DecodeEvent(entry.Payload)
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

// EventJSON returns the event of a payload as a JSON object, for people; a base64 string
// if the payload holds no event.
func EventJSON(payload []byte) ([]json.RawMessage, error) {
	var shown any = payload
	if e, err := DecodeEvent(payload); err == nil {
		shown = struct {
			Kind      string    `json:"kind"`
			User      string    `json:"user"`
			Placement string    `json:"placement"`
			Sequence  uint64    `json:"sequence"`
			Campaign  uint32    `json:"campaign"`
			Variant   uint8     `json:"variant,omitempty"`
			ShownAt   time.Time `json:"shown_at"`
			At        time.Time `json:"at"`
		}{e.Kind.String(), e.Key.User, e.Key.Placement, e.Sequence, uint32(e.Campaign), e.Variant, e.ShownAt.UTC(), e.At.UTC()}
	}
	text, err := json.Marshal(shown)
	return []json.RawMessage{text}, err
}
