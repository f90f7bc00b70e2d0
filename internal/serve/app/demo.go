package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"spillway/internal/database"
	"spillway/internal/exit"
	"spillway/internal/netstat"
	"spillway/internal/progress"
	"spillway/internal/serve/freight"
	"spillway/internal/serve/server"
)

// demoPolicy lets the demo's page load its own files and ask its own server.
const demoPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'"

// demoFiles returns the demo's page, and what it costs to serve what the page shows.
func (a *app) demoFiles() []server.File {
	return []server.File{
		{Path: "/", Type: "text/html; charset=utf-8", Policy: demoPolicy, Read: func() []byte { return freight.Page }},
		{Path: "/demo.js", Type: "text/javascript; charset=utf-8", Read: func() []byte { return freight.Script }},
		{Path: "/demo.css", Type: "text/css; charset=utf-8", Read: func() []byte { return freight.Style }},
		{Path: "/demo/costs", Type: "application/json", Read: a.demoCosts},
	}
}

// demoPart is what one panel of the demo's page has cost so far.
type demoPart struct {
	Name       string   `json:"name"`
	Path       string   `json:"path"`
	Answers    uint64   `json:"answers"`              // pages and events, records, or decisions
	Statements *uint64  `json:"statements,omitempty"` // that read a window, or transactions
	Listeners  *int     `json:"listeners,omitempty"`
	Age        *float64 `json:"age,omitempty"` // of the rows, in seconds
}

func onLoopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	return err == nil && netstat.IsLoopback(host)
}

// demoCosts returns the counters of the page's parts in this process.
func (a *app) demoCosts() []byte {
	costs := struct {
		Console string     `json:"console,omitempty"` // of an admin listener on this host
		Parts   []demoPart `json:"parts"`
	}{}
	if onLoopback(a.cfg.Listen) && onLoopback(a.cfg.Admin.Listen) {
		costs.Console = "http://" + a.cfg.Admin.Listen + "/"
	}
	for _, s := range a.feedStats() {
		statements := s.Refreshes + s.DatabasePages
		costs.Parts = append(costs.Parts, demoPart{
			Name: "list " + s.Name, Path: "GET " + s.Name, Answers: s.WindowPages + s.DatabasePages + s.Events,
			Statements: &statements, Listeners: &s.Listeners, Age: &s.AgeSeconds,
		})
	}
	for _, s := range a.streamStats() {
		costs.Parts = append(costs.Parts, demoPart{Name: "stream " + s.Name, Path: "POST " + s.Name, Answers: s.Stored, Statements: &s.Batches})
	}
	if a.popups != nil {
		s := a.popups.popup.Stats()
		costs.Parts = append(costs.Parts, demoPart{Name: "popup", Path: "GET " + a.popups.cfg.Path, Answers: s.Waits + s.Nones + s.Shows})
	}
	// Not everybody need know of others.
	shown := []string{"GET /goodslist", "GET /positions", "POST /orders", "POST /positions", "GET /popup"}
	costs.Parts = slices.DeleteFunc(costs.Parts, func(p demoPart) bool { return !slices.Contains(shown, p.Path) })
	text, err := json.Marshal(costs)
	if err != nil {
		panic("bug: costs do not encode: " + err.Error())
	}
	return text
}

// SeedFreight creates the freight app's data set in the database at a URL, and prints what
// it did. replace drops the app's tables first.
func SeedFreight(ctx context.Context, address string, dataset freight.Dataset, replace bool, stdout, stderr io.Writer) error {
	url, err := database.Parse(address)
	if err == nil {
		err = dataset.Validate()
	}
	if err != nil {
		return exit.UsageError(err)
	}
	outcome, err := freight.Seed(ctx, url, dataset, replace, progress.New(stderr))
	if err != nil {
		return fmt.Errorf("seed freight: %w", err)
	}
	if !outcome.Made {
		_, err = fmt.Fprintf(stdout, "%s holds this data set already (%s): nothing to do\n", url, dataset)
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s holds %d users and %d orders (%s), made in %s\n",
		url, dataset.Users, outcome.Orders, dataset, outcome.Took.Round(100*time.Millisecond))
	return err
}

// SeedGames creates the table game_record, or changes its index, and prints what it did.
func SeedGames(ctx context.Context, address string, games freight.Games, index freight.GameIndex, replace bool, stdout,
	stderr io.Writer,
) error {
	url, err := database.Parse(address)
	if err = errors.Join(err, games.Validate(), index.Validate()); err != nil {
		return exit.UsageError(err)
	}
	outcome, err := freight.SeedGames(ctx, url, games, index, replace, progress.New(stderr))
	if err != nil {
		return fmt.Errorf("seed games: %w", err)
	}
	took := outcome.Took.Round(100 * time.Millisecond)
	appID, token := freight.GameApp(1)
	switch {
	case outcome.Made:
		_, err = fmt.Fprintf(stdout, "%s holds %d records (%s --index %s), made in %s; the first app is app_id %s, token %s\n",
			url, games.Records, games, index, took, appID, token)
	case outcome.Indexed:
		_, err = fmt.Fprintf(stdout, "%s holds this data set already (%s); its index is now %s, made in %s\n", url, games, index, took)
	default:
		_, err = fmt.Fprintf(stdout, "%s holds this data set already (%s --index %s): nothing to do\n", url, games, index)
	}
	return err
}
