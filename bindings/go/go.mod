module headway/debox

go 1.21
