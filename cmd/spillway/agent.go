package main

import (
	"crypto/tls"
	"errors"
	"fmt"

	"spillway"
	"spillway/internal/exit"
	"spillway/internal/lab/agent"
	"spillway/internal/lab/result"
)

// agentCmd makes load for coordinators on other hosts.
type agentCmd struct {
	Listen  string   `default:":7070" placeholder:"ADDR" help:"Address for 'load --agents'. :7070 is loopback only, unless there is a token."`
	Token   string   `env:"SPILLWAY_AGENT_TOKEN" placeholder:"TOKEN" help:"Token that the coordinator must send, of at least 16 characters."`
	TLSCert string   `name:"tls-cert" placeholder:"FILE" help:"Certificate for TLS, in PEM form."`
	TLSKey  string   `name:"tls-key" placeholder:"FILE" help:"Its private key."`
	Allow   []string `placeholder:"HOST" help:"Public host that this agent may load. Without it, only this machine and private addresses are allowed."`
}

// Help is shown below the flags.
func (agentCmd) Help() string {
	return `Makes the load of one coordinator at a time. It stops when the coordinator does not answer any more.

Examples:
  SPILLWAY_AGENT_TOKEN=… spillway agent --listen :7070                      # on load-1 and load-2
  SPILLWAY_AGENT_TOKEN=… spillway load --agents load-1:7070,load-2:7070 http://app-1/goodslist --rate 20000`
}

// Run serves coordinators until it is interrupted.
func (c *agentCmd) Run(env *environment) error {
	config := agent.Config{Token: c.Token, Allow: c.Allow, Header: result.NewHeader(spillway.Version(), env.args), Log: env.log}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return exit.UsageError(errors.New("agent: --tls-cert and --tls-key belong together: give both"))
	}
	if c.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
		if err != nil {
			return exit.UsageError(fmt.Errorf("agent: load the certificate: %w", err))
		}
		config.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	}
	listener, err := agent.Listen(env.ctx, c.Listen, c.Token)
	if err != nil {
		return exit.UsageError(err)
	}
	env.log.Info("waiting for load --agents", "address", listener.Addr().String(), "token", c.Token != "", "tls", config.TLS != nil)
	return agent.Serve(env.ctx, listener, config)
}
