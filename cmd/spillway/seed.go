package main

import (
	"fmt"
	"time"

	"spillway/internal/database"
	"spillway/internal/freight"
	"spillway/internal/progress"
)

type seedCmd struct {
	Freight seedFreightCmd `cmd:"" help:"Create the freight app: users, and the orders they placed."`
}

type seedFreightCmd struct {
	Database   string `help:"Database URL: postgres://USER:PASSWORD@HOST:PORT/NAME or sqlite:PATH." placeholder:"URL" env:"SPILLWAY_DATABASE" required:""`
	Users      int    `help:"Registered users, 1 to 100000000." default:"1000000"`
	Days       int    `help:"Days with orders from 2015-12-01 on, 1 to 3660." default:"366"`
	PerDay     int    `help:"Orders a day at most, one a user; 0 to the number of users." default:"30000"`
	RandomSeed uint64 `help:"Equal seeds and sizes give equal rows, on every database." default:"1"`
	Replace    bool   `help:"Drop the freight app's tables first, with every row added to them since."`
}

// Help is shown below the flags.
func (seedFreightCmd) Help() string {
	return `Creates the tables users and orders with their indexes and statistics, in one transaction: when it is interrupted, nothing of it stays. The defaults make 10.8 million orders and 1.6 GB on PostgreSQL. Tables of those names that Spillway did not make are never touched.

Examples:
  spillway seed freight --database postgres://app@db/freight
  spillway seed freight --database sqlite:freight.db --users 10000 --per-day 560`
}

// Run creates the data set.
func (c *seedFreightCmd) Run(env *environment) error {
	url, err := database.Parse(c.Database)
	if err != nil {
		return usageError{err}
	}
	if url.Driver == database.MySQL {
		return usageError{freight.ErrUnsupported}
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
