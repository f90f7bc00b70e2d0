// Package exit defines the exit codes of the command line and marks errors with
// them. Code maps an error to its exit code, once, in main.
package exit

import "errors"

// The exit codes of every command.
const (
	OK     = 0
	Failed = 1 // an SLO or a check failed
	Usage  = 2 // wrong arguments or configuration
	Error  = 3 // the command could not run
	// NothingValid means that no measurement can be judged.
	NothingValid = 4
)

// coded is an error with an exit code.
type coded struct {
	error
	code int
}

func (e coded) Unwrap() error { return e.error }

// UsageError marks err as a mistake of the user. It returns nil for nil.
func UsageError(err error) error { return mark(err, Usage) }

// FailedError marks err as a failed SLO or check. It returns nil for nil.
func FailedError(err error) error { return mark(err, Failed) }

// NothingValidError marks err as the end of a command that measured nothing valid.
// It returns nil for nil.
func NothingValidError(err error) error { return mark(err, NothingValid) }

func mark(err error, code int) error {
	if err == nil {
		return nil
	}
	return coded{err, code}
}

// Code returns the exit code of err. An unmarked error has the code Error.
func Code(err error) int {
	var marked coded
	switch {
	case err == nil:
		return OK
	case errors.As(err, &marked):
		return marked.code
	}
	return Error
}
