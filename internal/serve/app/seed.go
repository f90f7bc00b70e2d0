package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"spillway/internal/database"
	"spillway/internal/exit"
	"spillway/internal/progress"
	"spillway/internal/serve/freight"
)

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
