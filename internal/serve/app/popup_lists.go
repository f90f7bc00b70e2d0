package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"spillway/internal/exit"
	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
)

// listDefinition describes the statement of a list of users.
func listDefinition(s config.Statement) feed.Definition {
	return feed.Definition{Name: "popups.lists." + s.Name, SQL: s.SQL}
}

// openLists has the campaigns read the lists by SQL.
func (p *popupPart) openLists() error {
	var queries []popup.ListQuery
	turns := p.store.refreshes.Entrance()
	for _, s := range p.cfg.Lists {
		source, err := p.store.source(listDefinition(s))
		if err != nil {
			return exit.UsageError(err)
		}
		p.listSources = append(p.listSources, source)
		queries = append(queries, popup.ListQuery{Name: s.Name, Users: func(ctx context.Context, yield func(string) error) (int, error) {
			return p.listUsers(ctx, turns, source, yield)
		}})
	}
	p.campaigns.Query(queries, p.cfg.ListsRefresh)
	return nil
}

// checkLists checks the statements of lists.
func (p *popupPart) checkLists(ctx context.Context) error {
	for i, source := range p.listSources {
		if err := source.Check(ctx, 0); err != nil {
			return err
		}
		if n := len(source.Columns()); n != 1 {
			return fmt.Errorf("popups.lists.%s: the statement returns %d columns; it must return one, the user's id", p.cfg.Lists[i].Name, n)
		}
	}
	return nil
}

// errRestarted: a source has started again after the first rows.
var errRestarted = errors.New("the connection was lost between rows")

// listUsers yields the canonical ids that a statement returns.
func (p *popupPart) listUsers(ctx context.Context, turns *queue.Entrance, source feed.Source, yield func(string) error) (skipped int,
	err error,
) {
	leave, err := turns.Enter(ctx, 0)
	if err != nil {
		return 0, err
	}
	defer leave()
	seen := 0
	rows := feed.Rows{Limit: feed.Limit{Rows: math.MaxInt, Bytes: userRowBytes}}
	rows.Each = func(object []byte) error {
		if seen++; rows.Len() != seen {
			return errRestarted
		}
		id, ok := p.userOf(object)
		if !ok {
			skipped++
			return nil
		}
		return yield(id)
	}
	err = source.Read(ctx, feed.Range{}, &rows)
	return skipped, err
}

// userOf returns the canonical id in a row of one column.
func (p *popupPart) userOf(object []byte) (id string, ok bool) {
	i := len(`{"`)
	for ; object[i] != '"'; i++ {
		if object[i] == '\\' {
			i++
		}
	}
	value := object[i+len(`":`) : len(object)-len("}")]
	text := string(value)
	if text == "null" || value[0] == '"' && json.Unmarshal(value, &text) != nil {
		return "", false
	}
	id, err := param.Parse(param.Param{Name: "user", Type: param.Type(p.cfg.UserType)}, text)
	return id, err == nil && popup.CheckUser(id) == nil
}
