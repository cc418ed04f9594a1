// Nanoseconds per turn of the event loop of Node.js. With a path, watched by the package there.
const TURNS = 200000;
if (process.argv[2]) require(process.argv[2]).watchLoop();
const begun = process.hrtime.bigint();
let turns = 0;
const turn = () => {
    if (++turns < TURNS) return setImmediate(turn);
    console.log((Number(process.hrtime.bigint() - begun) / TURNS).toFixed(1));
    process.exit(0);
};
setImmediate(turn);
