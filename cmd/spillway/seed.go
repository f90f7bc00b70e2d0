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
	Database string `help:"Database URL: postgres://USER:PASSWORD@HOST:PORT/NAME, mysql://USER:PASSWORD@HOST:PORT/NAME or sqlite:PATH." placeholder:"URL" env:"SPILLWAY_DATABASE" required:""`
	freight.Dataset
	Replace bool `help:"Drop the freight app's tables first, with every row added to them since."`
}

// Run creates the data set.
func (c *seedFreightCmd) Run(env *environment) error {
	return app.SeedFreight(env.ctx, c.Database, c.Dataset, c.Replace, env.stdout, env.stderr)
}

type seedGamesCmd struct {
	Database   string            `help:"Database URL: postgres://USER:PASSWORD@HOST:PORT/NAME, mysql://USER:PASSWORD@HOST:PORT/NAME or sqlite:PATH." placeholder:"URL" env:"SPILLWAY_DATABASE" required:""`
	Apps       int               `help:"Number of apps, 1 to 100000. With one, app_id, token and prize_grade hold one value each." default:"1"`
	Records    int               `help:"Records, 1 to 100000000." default:"500000"`
	Index      freight.GameIndex `help:"The table's one index: none, seed (prize_grade, score) or right (app_id, token, prize_grade, score)." default:"none"`
	RandomSeed uint64            `help:"Equal random seeds and sizes give equal rows, on every database." default:"1"`
	Replace    bool              `help:"Drop the table first, with every row added to it since."`
}

// Run creates the data set.
func (c *seedGamesCmd) Run(env *environment) error {
	games := freight.Games{Apps: c.Apps, Records: c.Records, Seed: c.RandomSeed}
	return app.SeedGames(env.ctx, c.Database, games, c.Index, c.Replace, env.stdout, env.stderr)
}
