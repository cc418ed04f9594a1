import net from 'net'; import {execSync} from 'child_process'; import fs from 'fs';
globalThis.Deno={args:process.argv.slice(3),exit:c=>process.exit(c),connect:({hostname,port})=>new Promise((ok,no)=>{const s=net.connect({host:hostname,port:+port},()=>ok({write:b=>new Promise(r=>s.write(b,()=>r())),close:()=>s.destroy(),read:buf=>new Promise(r=>{const f=()=>{const d=s.read();if(d){const n=Math.min(d.length,buf.length);buf.set(d.subarray(0,n));s.off('readable',f);r(n)}};s.on('readable',f);s.on('end',()=>r(null));f()})}));s.on('error',no)})};
const src=fs.readFileSync(process.argv[2],'utf8');
const esbuild=await import('esbuild');
const js=(await (esbuild.default||esbuild).transform(src,{loader:'ts'})).code; (0,eval)(js);
