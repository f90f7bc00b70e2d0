package main

import (
	"spillway/internal/serve/app"
	"spillway/internal/serve/freight"
)

type seedCmd struct {
	Freight seedFreightCmd `cmd:"" help:"Create the freight app: users, and the orders they placed."`
	Games   seedGamesCmd   `cmd:"" help:"Create the table game_record, for comparing the indexes of a query."`
}

type seedFreightCmd struct {
	Database   string `help:"Database URL: postgres://USER:PASSWORD@HOST:PORT/NAME, mysql://USER:PASSWORD@HOST:PORT/NAME or sqlite:PATH." placeholder:"URL" env:"SPILLWAY_DATABASE" required:""`
	Users      int    `help:"Registered users, 1 to 100000000." default:"1000000"`
	Days       int    `help:"Days with orders from 2015-12-01 on, 1 to 3660." default:"366"`
	PerDay     int    `help:"Orders per day at most, one per user; 0 to the number of users." default:"30000"`
	RandomSeed uint64 `help:"Equal random seeds and sizes give equal rows, on every database." default:"1"`
	Replace    bool   `help:"Drop the freight app's tables first, with every row added to them since."`
}

// Help is shown below the flags.
func (seedFreightCmd) Help() string {
	return `Creates the tables users, orders and positions with their indexes and statistics. If it is interrupted, it leaves nothing. The defaults create 10.8 million orders and 1.6 GB on PostgreSQL. Tables of those names that Spillway did not create are never changed.

Examples:
  spillway seed freight --database postgres://app@db/freight
  spillway seed freight --database mysql://app@db/freight --per-day 3000
  spillway seed freight --database sqlite:freight.db --users 10000 --per-day 560`
}

// Run creates the data set.
func (c *seedFreightCmd) Run(env *environment) error {
	dataset := freight.Dataset{Users: c.Users, Days: c.Days, PerDay: c.PerDay, Seed: c.RandomSeed}
	return app.SeedFreight(env.ctx, c.Database, dataset, c.Replace, env.stdout, env.stderr)
}

type seedGamesCmd struct {
	Database   string            `help:"Database URL: postgres://USER:PASSWORD@HOST:PORT/NAME, mysql://USER:PASSWORD@HOST:PORT/NAME or sqlite:PATH." placeholder:"URL" env:"SPILLWAY_DATABASE" required:""`
	Apps       int               `help:"Number of apps, 1 to 100000. With one, app_id, token and prize_grade hold one value each." default:"1"`
	Records    int               `help:"Records, 1 to 100000000." default:"500000"`
	Index      freight.GameIndex `help:"The table's one index: none, seed (prize_grade, score) or right (app_id, token, prize_grade, score)." default:"none"`
	RandomSeed uint64            `help:"Equal random seeds and sizes give equal rows, on every database." default:"1"`
	Replace    bool              `help:"Drop the table first, with every row added to it since."`
}

// Help is shown below the flags.
func (seedGamesCmd) Help() string {
	return `Creates the table game_record (app_id, token, game_match_id, user_id, nickname, device_id, prize_grade, start_time, score). If it is interrupted, it leaves nothing. Run again with another --index, it changes the index and keeps the rows. A table of that name that Spillway did not create is never changed.

Examples:
  spillway seed games --database mysql://app@db/games --index seed
  spillway seed games --database postgres://app@db/games --apps 200 --index right`
}

// Run creates the data set.
func (c *seedGamesCmd) Run(env *environment) error {
	games := freight.Games{Apps: c.Apps, Records: c.Records, Seed: c.RandomSeed}
	return app.SeedGames(env.ctx, c.Database, games, c.Index, c.Replace, env.stdout, env.stderr)
}
