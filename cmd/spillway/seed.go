package main

import (
	"errors"
	"fmt"
	"time"

	"spillway/internal/database"
	"spillway/internal/progress"
	"spillway/internal/serve/freight"
)

type seedCmd struct {
	Freight seedFreightCmd `cmd:"" help:"Create the freight app: users, and the orders they placed."`
	Games   seedGamesCmd   `cmd:"" help:"Create the table game_record, to compare a query's indexes on."`
}

type seedFreightCmd struct {
	Database   string `help:"Database URL: postgres://USER:PASSWORD@HOST:PORT/NAME, mysql://USER:PASSWORD@HOST:PORT/NAME or sqlite:PATH." placeholder:"URL" env:"SPILLWAY_DATABASE" required:""`
	Users      int    `help:"Registered users, 1 to 100000000." default:"1000000"`
	Days       int    `help:"Days with orders from 2015-12-01 on, 1 to 3660." default:"366"`
	PerDay     int    `help:"Orders a day at most, one a user; 0 to the number of users." default:"30000"`
	RandomSeed uint64 `help:"Equal seeds and sizes give equal rows, on every database." default:"1"`
	Replace    bool   `help:"Drop the freight app's tables first, with every row added to them since."`
	Upgrade    bool   `help:"Make the tables that an earlier release's data set lacks, keep every row, and nothing else."`
}

// Help is shown below the flags.
func (seedFreightCmd) Help() string {
	return `Creates the tables users, orders and positions with their indexes and statistics, all or nothing: when it is interrupted, nothing of it stays. The defaults make 10.8 million orders and 1.6 GB on PostgreSQL. Tables of those names that Spillway did not make are never touched.

Examples:
  spillway seed freight --database postgres://app@db/freight
  spillway seed freight --database mysql://app@db/freight --per-day 3000
  spillway seed freight --database postgres://app@db/freight --upgrade
  spillway seed freight --database sqlite:freight.db --users 10000 --per-day 560`
}

// Run creates the data set.
func (c *seedFreightCmd) Run(env *environment) error {
	url, err := database.Parse(c.Database)
	if err != nil {
		return usageError{err}
	}
	if c.Upgrade {
		return c.upgrade(env, url)
	}
	dataset := freight.Dataset{Users: c.Users, Days: c.Days, PerDay: c.PerDay, Seed: c.RandomSeed}
	if err := dataset.Validate(); err != nil {
		return usageError{err}
	}
	outcome, err := freight.Seed(env.ctx, url, dataset, c.Replace, progress.New(env.stderr))
	if err != nil {
		return fmt.Errorf("seed freight: %w", err)
	}
	if !outcome.Made {
		_, err = fmt.Fprintf(env.stdout, "%s holds this data set already (%s): nothing to do\n", url, dataset)
		return err
	}
	_, err = fmt.Fprintf(env.stdout, "%s holds %d users and %d orders (%s), made in %s\n",
		url, dataset.Users, outcome.Orders, dataset, outcome.Took.Round(100*time.Millisecond))
	return err
}

// upgrade brings the schema of the data set that is there up to date.
func (c *seedFreightCmd) upgrade(env *environment, url database.URL) error {
	if c.Replace {
		return usageError{errors.New("--upgrade keeps every row, --replace drops all: give one of them")}
	}
	from, to, err := freight.Migrate(env.ctx, url)
	switch {
	case err != nil:
		return fmt.Errorf("upgrade freight: %w", err)
	case to == 0:
		return fmt.Errorf("upgrade freight: %s holds no freight app: spillway seed freight makes it", url)
	case from == to:
		_, err = fmt.Fprintf(env.stdout, "%s is up to date (version %d): nothing to do\n", url, to)
	default:
		_, err = fmt.Fprintf(env.stdout, "%s is at version %d now, it was at %d\n", url, to, from)
	}
	return err
}

type seedGamesCmd struct {
	Database   string            `help:"Database URL: postgres://USER:PASSWORD@HOST:PORT/NAME, mysql://USER:PASSWORD@HOST:PORT/NAME or sqlite:PATH." placeholder:"URL" env:"SPILLWAY_DATABASE" required:""`
	Apps       int               `help:"Apps that the records are of, 1 to 100000. With one, app_id, token and prize_grade hold one value each." default:"1"`
	Records    int               `help:"Records, 1 to 100000000." default:"500000"`
	Index      freight.GameIndex `help:"The table's one index: none, seed (prize_grade, score) or right (app_id, token, prize_grade, score)." default:"none"`
	RandomSeed uint64            `help:"Equal seeds and sizes give equal rows, on every database." default:"1"`
	Replace    bool              `help:"Drop the table first, with every row added to it since."`
}

// Help is shown below the flags.
func (seedGamesCmd) Help() string {
	return `Creates the table game_record (app_id, token, game_match_id, user_id, nickname, device_id, prize_grade, start_time, score), all or nothing. Run again with another --index it changes the index and keeps the rows. A table of that name that Spillway did not make is never touched.

Examples:
  spillway seed games --database mysql://app@db/games --index seed
  spillway seed games --database postgres://app@db/games --apps 200 --index right`
}

// Run creates the data set.
func (c *seedGamesCmd) Run(env *environment) error {
	url, err := database.Parse(c.Database)
	if err != nil {
		return usageError{err}
	}
	games := freight.Games{Apps: c.Apps, Records: c.Records, Seed: c.RandomSeed}
	if err := games.Validate(); err != nil {
		return usageError{err}
	}
	if err := c.Index.Validate(); err != nil {
		return usageError{err}
	}
	outcome, err := freight.SeedGames(env.ctx, url, games, c.Index, c.Replace, progress.New(env.stderr))
	if err != nil {
		return fmt.Errorf("seed games: %w", err)
	}
	took := outcome.Took.Round(100 * time.Millisecond)
	appID, token := freight.GameApp(1)
	switch {
	case outcome.Made:
		_, err = fmt.Fprintf(env.stdout, "%s holds %d records (%s --index %s), made in %s; the first app is app_id %s, token %s\n",
			url, games.Records, games, c.Index, took, appID, token)
	case outcome.Indexed:
		_, err = fmt.Fprintf(env.stdout, "%s holds this data set already (%s); its index is now %s, made in %s\n", url, games, c.Index, took)
	default:
		_, err = fmt.Fprintf(env.stdout, "%s holds this data set already (%s --index %s): nothing to do\n", url, games, c.Index)
	}
	return err
}
