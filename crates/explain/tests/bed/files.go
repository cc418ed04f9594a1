// A server whose handlers read files, or wait for a lock. Arguments: a port and a folder.
package main

import (
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
)

func serve(writer http.ResponseWriter, request *http.Request) {
	file, err := os.Open(os.Args[2] + request.URL.Path)
	if err != nil {
		http.Error(writer, err.Error(), 404)
		return
	}
	defer file.Close()
	if strings.HasSuffix(request.URL.Path, "/lock") {
		syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
	}
	body, _ := io.ReadAll(file)
	writer.Header().Set("Content-Length", strconv.Itoa(len(body)))
	writer.Write(body)
}

func main() {
	if err := http.ListenAndServe("127.0.0.1:"+os.Args[1], http.HandlerFunc(serve)); err != nil {
		panic(err)
	}
}
