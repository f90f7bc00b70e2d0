package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/redis/rueidis"

	"spillway/internal/serve/audit"
	"spillway/internal/serve/popup"
)

// confirmedFor is how long the campaigns that were read from the database count as its
// current ones after it said so.
const confirmedFor = time.Second

// CampaignCopy is the database's campaigns with a copy in Redis, which a process reads that
// starts while the database is away. Its Popups writes the copy. Its methods may be called
// concurrently.
type CampaignCopy struct {
	tables popup.CampaignTables
	store  atomic.Pointer[Popups] // set by Popups.Open
	away   atomic.Bool            // Campaigns returns the copy

	mu        sync.Mutex
	version   int64     // of the campaigns read last
	encoded   []byte    // these; nil before the first read
	sum       string    // a checksum of encoded
	asked     time.Time // when that read began
	confirmed time.Time // when the database last said that this version is its current one
}

// NewCampaignCopy returns a CampaignCopy. Until the Popups of whose PopupConfig it is part are
// opened, it is just the database's campaigns.
func NewCampaignCopy(tables popup.CampaignTables) *CampaignCopy { return &CampaignCopy{tables: tables} }

// SetAway chooses whether Campaigns returns the copy in Redis. Versions cannot be read then,
// and nothing can be saved.
func (c *CampaignCopy) SetAway(away bool) { c.away.Store(away) }

// Version implements popup.CampaignTables.
func (c *CampaignCopy) Version(ctx context.Context) (int64, error) {
	if c.away.Load() {
		return 0, errNoDatabase
	}
	version, err := c.tables.Version(ctx)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if version == c.version {
			c.confirmed = time.Now()
		}
	}
	return version, err
}

// Campaigns implements popup.CampaignTables.
func (c *CampaignCopy) Campaigns(ctx context.Context) (int64, []popup.StoredCampaign, error) {
	if c.away.Load() {
		return c.stored(ctx)
	}
	asked := time.Now()
	version, all, err := c.tables.Campaigns(ctx)
	if err != nil {
		return 0, nil, err
	}
	encoded, err := encodeCampaigns(all)
	if err != nil {
		return 0, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if asked.After(c.asked) {
		c.version, c.encoded, c.sum = version, encoded, strconv.FormatUint(xxhash.Sum64(encoded), 16)
		c.asked, c.confirmed = asked, asked
	}
	if p := c.store.Load(); p != nil {
		p.checkNow() // which writes them
	}
	return version, all, nil
}

// SaveCampaign implements popup.CampaignTables.
func (c *CampaignCopy) SaveCampaign(ctx context.Context, changed popup.StoredCampaign, checked int64, by audit.Author) (
	popup.StoredCampaign, error,
) {
	if c.away.Load() {
		return changed, errNoDatabase
	}
	return c.tables.SaveCampaign(ctx, changed, checked, by)
}

// stored returns the copy, if it belongs to the database.
func (c *CampaignCopy) stored(ctx context.Context) (int64, []popup.StoredCampaign, error) {
	p := c.store.Load()
	if p == nil {
		return 0, nil, errNotReady
	}
	if err := p.own(ctx); err != nil {
		return 0, nil, p.db.wrap("check", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*p.cfg.commandTimeout)
	defer cancel()
	client := p.db.client
	fields, err := client.Do(ctx, client.B().Hmget().Key(p.keys[0].campaigns).Field("version", "campaigns").Build()).ToArray()
	if err != nil {
		return 0, nil, p.db.wrap("read the campaigns of", err)
	}
	version, err := fields[0].AsInt64()
	if rueidis.IsRedisNil(err) {
		return 0, nil, p.db.wrap("read the campaigns of", errors.New("it has none yet"))
	}
	text, err2 := fields[1].ToString()
	all, err3 := decodeCampaigns(text)
	if err := errors.Join(err, err2, err3); err != nil {
		return 0, nil, p.db.wrap("read the campaigns of", err)
	}
	return version, all, nil
}

// keepCampaigns writes the campaigns that this process has read, unless Redis has them or newer
// ones. If the database has just said that its version is this one, newer ones and others of
// the same version are replaced, because it was restored.
func (p *Popups) keepCampaigns(ctx context.Context) error {
	c := p.cfg.Campaigns
	if c == nil {
		return nil
	}
	c.mu.Lock()
	version, encoded, sum, confirmed := c.version, c.encoded, c.sum, c.confirmed
	c.mu.Unlock()
	if encoded == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*p.cfg.commandTimeout)
	defer cancel()
	client, key := p.db.client, p.keys[0].campaigns
	fields, err := client.Do(ctx, client.B().Hmget().Key(key).Field("version", "sum").Build()).ToArray()
	if err != nil {
		return p.db.wrap("check the campaigns of", err)
	}
	if stored, err := fields[0].AsInt64(); err == nil {
		same, _ := fields[1].ToString() // nil: not the same
		if stored == version && same == sum || stored >= version && time.Since(confirmed) > confirmedFor {
			return nil
		}
	}
	err = client.Do(ctx, client.B().Hset().Key(key).FieldValue().FieldValue("version", strconv.FormatInt(version, 10)).FieldValue("sum", sum).
		FieldValue("campaigns", rueidis.BinaryString(encoded)).Build()).Error()
	return p.db.wrap("write the campaigns to", err)
}

// encodeCampaigns returns the campaigns that could be decoded, one a line.
func encodeCampaigns(all []popup.StoredCampaign) ([]byte, error) {
	lines := []byte{} // not nil: they have been read
	for _, c := range all {
		if c.Readable() != nil {
			continue
		}
		line, err := c.Encode()
		if err != nil {
			return nil, err
		}
		lines = append(append(lines, line...), '\n')
	}
	return lines, nil
}

func decodeCampaigns(lines string) ([]popup.StoredCampaign, error) {
	var all []popup.StoredCampaign
	decoder := json.NewDecoder(strings.NewReader(lines))
	decoder.DisallowUnknownFields() // a condition that is not known must not be ignored
	for decoder.More() {
		var c popup.StoredCampaign
		if err := decoder.Decode(&c); err != nil {
			return nil, fmt.Errorf("decode campaigns: %w", err)
		}
		all = append(all, c)
	}
	return all, nil
}
