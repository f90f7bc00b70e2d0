package main

import "spillway/internal/serve/app"

type popupsCmd struct {
	Forget popupsForgetCmd `cmd:"" help:"Delete all that is known about a user."`
}

type popupsForgetCmd struct {
	User   string `arg:"" help:"Id of the user."`
	Config string `help:"Configuration (YAML) of the server, with the address and the token of its admin listener." placeholder:"FILE"`
	Admin  string `help:"Admin listener, host:port or unix:PATH, if it is not the one in the file."`
}

// Help is shown below the flags.
func (popupsForgetCmd) Help() string {
	return `Deletes the user's states, in memory or Redis, and after the waiting events have reached the database, the states, events and list entries there. The server must run. Stop the requests of the user before.

Examples:
  spillway popups forget 7 --config spillway.yaml
  spillway popups forget 7 --admin 127.0.0.1:9090`
}

// Run forgets a user.
func (c *popupsForgetCmd) Run(env *environment) error {
	return app.ForgetUser(env.ctx, c.User, c.Config, c.Admin, env.stdout)
}
