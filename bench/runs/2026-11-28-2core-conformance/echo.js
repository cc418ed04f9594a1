const http=require('http');
http.createServer({maxHeaderSize:200000},(q,r)=>{const b=[];q.on('data',d=>b.push(d));q.on('end',()=>{
 const p=q.url.split('?')[0]; let out='OK';
 if(p==='/echo'){out='';for(let i=0;i<q.rawHeaders.length;i+=2)out+=q.rawHeaders[i]+': '+q.rawHeaders[i+1]+'\n'}
 else if(p==='/cookie'){out=(q.headers.cookie||'').split(';').map(x=>x.trim()).filter(x=>x.indexOf('=')>0).join('\n')+'\n'}
 else if(b.length)out=Buffer.concat(b);
 r.setHeader('Content-Type','text/plain');r.setHeader('Content-Length',Buffer.byteLength(out));r.end(out)})}).listen(9181,'127.0.0.1');
