package redis

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/redis/rueidis"
)

// DeniedError: the server does not let its user run a command or use a key, or it does not have the
// command. The text says what to permit, and can be shown to anybody.
type DeniedError struct {
	need  string
	cause error
}

// Error says what to permit.
func (e *DeniedError) Error() string { return e.need }

// Unwrap returns the error of the server.
func (e *DeniedError) Unwrap() error { return e.cause }

// The server's refusals. Those in a script name no command.
var (
	refusedCommand = regexp.MustCompile(`^NOPERM .*to run the '([^']+)' command`)
	refusedScript  = regexp.MustCompile(`(?i)user executing the script can't run|ACL failure in script|unknown redis command called from`)
	refusedKey     = regexp.MustCompile(`^NOPERM .*(access a key|the keys)|can't access at least one of the keys`)
	unknownCommand = regexp.MustCompile("(?i)^unknown (?:sub)?command ['`]([^'`]+)")
)

// denied returns err as a *DeniedError if it is one. keys is the pattern of the keys that the caller uses.
func denied(err error, keys string) error {
	refusal, ok := errors.AsType[*rueidis.RedisError](err)
	if _, done := errors.AsType[*DeniedError](err); done || !ok {
		return err
	}
	text := refusal.Error()
	if refusedScript.MatchString(text) {
		return &DeniedError{"this user of Redis may not run a command of a script", err}
	}
	if found := refusedCommand.FindStringSubmatch(text); found != nil {
		command := strings.ToLower(found[1])
		if strings.HasPrefix(command, "eval") {
			command = "evalsha +eval"
		}
		return permit(err, "+"+command)
	}
	if found := unknownCommand.FindStringSubmatch(text); found != nil {
		return &DeniedError{fmt.Sprintf("this Redis has no command %s: it was disabled or renamed", strings.ToUpper(found[1])), err}
	}
	if refusedKey.MatchString(text) {
		return permit(err, "~"+keys)
	}
	return err
}

// permit is the error of rights that are missing, as ACL SETUSER takes them.
func permit(cause error, rights string) error {
	return &DeniedError{"this user of Redis lacks rights: permit " + rights + " with ACL SETUSER", cause}
}

// isDenied reports whether the server has refused a call.
func isDenied(err error) bool {
	_, refused := errors.AsType[*DeniedError](denied(err, ""))
	return refused
}

// denial is a kind of calls.
type denial struct{ action, keys string }

// noteDenial notes whether the server refuses a kind of calls.
func (db *DB) noteDenial(kind denial, err error) {
	if isDenied(err) {
		db.denials.Store(kind, err)
	} else {
		db.denials.Delete(kind)
	}
}

// Denied returns a *DeniedError if the server refuses a kind of call for keys with this prefix.
func (db *DB) Denied(prefix string) (denied error) {
	db.denials.Range(func(kind, err any) bool {
		if kind.(denial).keys == keysLike(prefix) {
			denied = err.(error)
		}
		return denied == nil
	})
	return denied
}

// keysLike returns the pattern of the keys with the same prefix: "spillway:*" for spillway:query:...
func keysLike(key string) string {
	prefix, _, _ := strings.Cut(key, ":")
	return prefix + ":*"
}

var rightsScript = rueidis.NewLuaScript(script("rights"))

// rights returns a *DeniedError that names all commands that are missing; nil if the popups can run all that they need.
func (p *Popups) rights(ctx context.Context) error {
	lists, err := rightsScript.Exec(ctx, p.db.client, []string{p.keys.probe}, nil).ToArray()
	if err != nil || len(lists) != 2 {
		return err
	}
	refused, err := lists[0].AsStrSlice()
	unknown, err2 := lists[1].AsStrSlice()
	switch {
	case err != nil || err2 != nil:
		return errors.Join(err, err2)
	case len(unknown) > 0:
		return &DeniedError{"this Redis lacks commands: " + strings.ToUpper(strings.Join(unknown, ", ")) + "; they were disabled or renamed", nil}
	case len(refused) > 0:
		return permit(nil, "+"+strings.Join(refused, " +"))
	}
	return nil
}
