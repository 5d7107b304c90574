// Package main is the entry point of two stand-in images. Called as /pause it waits for a signal to
// end, as the pause image does; called as /go-runner it becomes the program that its arguments name.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	if filepath.Base(os.Args[0]) == "pause" {
		end := make(chan os.Signal, 1)
		signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
		<-end
		return
	}
	if len(os.Args) < 2 {
		fail("no program is named")
	}
	program, err := exec.LookPath(os.Args[1])
	if err != nil {
		fail(err)
	}
	fail(syscall.Exec(program, os.Args[1:], os.Environ()))
}

func fail(why any) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}
