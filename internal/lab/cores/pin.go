package cores

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// A Pin keeps this process on some cores and the target's processes on others until Release.
type Pin struct {
	Generator, Target Set

	processes func() ([]int, error)
	keeper    *exec.Cmd
	orders    *json.Encoder
	input     io.Closer
	acks      *bufio.Scanner
	moved     map[int]bool // threads of the target
	before    Set          // cores of this process
	threads   int          // GOMAXPROCS
}

// Split divides the available cores between a generator and a target, which get at least one each.
func Split(available Set, generator int) (own, target Set, err error) {
	switch {
	case len(available) < 2:
		return nil, nil, errors.New("needs two cores, and this process may use one: run the load generator on another machine")
	case generator >= len(available):
		return nil, nil, fmt.Errorf("leaves no core to the target: %d of %d cores are the generator's; use fewer --workers", generator,
			len(available))
	}
	rest := len(available) - generator
	return available[rest:], available[:rest], nil
}

// passes bounds the search for threads that start while others are moved.
const passes = 100

// Start moves the processes that the function returns to target, and this process to generator. keeper is the command that
// runs Keep. It learns what to restore before anything is moved, and restores it when this process is gone, however it ended.
// GOMAXPROCS follows the number of cores. The caller calls Release.
func Start(keeper []string, generator, target Set, processes func() ([]int, error)) (*Pin, error) {
	before, err := Available()
	if err != nil {
		return nil, fmt.Errorf("pin: %w", err)
	}
	p := &Pin{
		Generator: generator, Target: target, processes: processes, moved: map[int]bool{}, before: before,
		threads: runtime.GOMAXPROCS(0),
	}
	if err := p.startKeeper(keeper); err != nil {
		return nil, fmt.Errorf("pin: start the process that restores cores: %w", err)
	}
	err = p.moveTarget()
	if err == nil {
		err = restrictSelf(generator)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pin: %w", err), p.Release())
	}
	runtime.GOMAXPROCS(len(generator))
	return p, nil
}

func (p *Pin) startKeeper(command []string) error {
	p.keeper = exec.Command(command[0], command[1:]...)
	p.keeper.Stderr = os.Stderr
	p.keeper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C does not reach it
	input, err := p.keeper.StdinPipe()
	if err != nil {
		return err
	}
	output, err := p.keeper.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.keeper.Start(); err != nil {
		return err
	}
	p.orders, p.input, p.acks = json.NewEncoder(input), input, bufio.NewScanner(output)
	return p.order(order{Target: p.Target})
}

// order sends an order to the keeper and waits until it knows it.
func (p *Pin) order(o order) error {
	if err := p.orders.Encode(o); err != nil {
		return err
	}
	if !p.acks.Scan() {
		return errors.Join(errors.New("it ended"), p.acks.Err())
	}
	return nil
}

// moveTarget moves threads until it finds no new ones. What the target starts later stays on the same cores.
func (p *Pin) moveTarget() error {
	for pass := range passes {
		pids, err := p.processes()
		if err != nil {
			return err
		}
		var fresh []saved
		for _, pid := range pids {
			for _, tid := range threadsOf(pid) {
				s, ok := save(pid, tid)
				if !ok || p.moved[tid] || pass > 0 && s.Cores.String() == p.Target.String() { // born on its cores
					continue
				}
				fresh = append(fresh, s)
			}
		}
		if len(fresh) == 0 {
			return nil
		}
		if err := p.order(order{Save: fresh}); err != nil {
			return err
		}
		for _, s := range fresh {
			if err := setAffinity(s.TID, p.Target); err != nil {
				return moveError(s, p.Target, err)
			}
			p.moved[s.TID] = true
		}
	}
	return errors.New("the target starts threads faster than they can be moved")
}

func moveError(s saved, target Set, err error) error {
	name := ""
	if stat, err := statOf(s.PID); err == nil {
		name = " (" + stat.Comm + ")"
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("may not move process %d%s to cores %s: run spillway as its user or as root", s.PID, name, target)
	}
	return fmt.Errorf("move process %d%s to cores %s: %w; a control group may keep it from these cores", s.PID, name, target, err)
}

// Release lets the target's processes use the cores that they could use before, also those that they have started since, and
// this process, too, so that it can be pinned again.
func (p *Pin) Release() error {
	p.input.Close()
	err := p.keeper.Wait()
	if err != nil {
		err = fmt.Errorf("pin: restore the cores of the target: %w", err)
	}
	runtime.GOMAXPROCS(p.threads)
	return errors.Join(err, restrictSelf(p.before))
}
