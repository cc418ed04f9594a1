// Runs the translated cases of a checkout: node probe-runner.js probe.js host port
const net=require('net'),fs=require('fs'),vm=require('vm');
const [,, file, host, portText, only]=process.argv; const port=+portText;
Object.assign(globalThis,{
  TestCategory:new Proxy({}, {get:(_,k)=>k}), RfcLevel:new Proxy({}, {get:(_,k)=>k}), TestVerdict:new Proxy({}, {get:(_,k)=>k}), ConnectionState:new Proxy({}, {get:(_,k)=>k}),
  StringComparison:{Ordinal:0,OrdinalIgnoreCase:1}, StringSplitOptions:{RemoveEmptyEntries:1},
  StatusCodeRange:{Exact:c=>({Contains:s=>s===c,t:''+c}),Range:(a,b)=>({Contains:s=>s>=a&&s<=b,t:a+'-'+b}),get Range2xx(){return this.Range(200,299)},get Range4xx(){return this.Range(400,499)},get Range4xxOr5xx(){return this.Range(400,599)}},
  Encoding:{ASCII:{GetBytes:s=>Array.from(s,c=>c.codePointAt(0)>127?63:c.charCodeAt(0)),GetByteCount:s=>s.length}, UTF8:{GetBytes:s=>[...Buffer.from(s)]}},
  Str:{IsNullOrEmpty:s=>!s,IsNullOrWhiteSpace:s=>!s||!s.trim(),Join:(sep,a)=>[...a].join(sep),Equals:(a,b,c)=>c?a?.toLowerCase()===b?.toLowerCase():a===b,Concat:(...a)=>a.join('')},
  Int:{TryParse:(s,a,b,out)=>{if(!out){out=a;const ok=/^\s*[+-]?\d+\s*$/.test(s);out(parseInt(s,10));return ok}const ok=/^[0-9a-fA-F]+$/.test(s);out(parseInt(s,16));return ok}},
  System:{Globalization:{NumberStyles:{HexNumber:1},CultureInfo:{InvariantCulture:1},DateTimeStyles:{None:0}}},
  DateTime:{TryParseExact:s=>/^(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d{4} \d\d:\d\d:\d\d GMT$/.test(s)},
  Enumerable:{Range:(a,n)=>({Select:f=>Array.from({length:n},(_,i)=>f(i+a))})},
  Random:class{NextBytes(a){let x=42;for(let i=0;i<a.length;i++){x=(x*1103515245+12345)&0x7fffffff;a[i]=(x>>16)&255}}},
  StringBuilder:class{constructor(){this.s=''}Append(x){this.s+=x;return this}ToString(){return this.s}get Length(){return this.s.length}},
  TimeSpan:{FromMilliseconds:x=>x,FromSeconds:x=>x*1000,Zero:0},
  repeat:(c,n)=>c.repeat(n), entries:o=>o.entries?o.entries():Object.entries(o),
});
const S=String.prototype, def=(p,o)=>{for(const k in o)Object.defineProperty(p,k,{value:o[k],configurable:true})};
def(S,{Contains(x,c){return c?this.toLowerCase().includes(x.toLowerCase()):this.includes(x)},StartsWith(x,c){return c?this.toLowerCase().startsWith(x.toLowerCase()):this.startsWith(x)},EndsWith(x){return this.endsWith(x)},Equals(x,c){return c?this.toLowerCase()===x.toLowerCase():this==x},IndexOf(x,p){return this.indexOf(x,p||0)},LastIndexOf(x){return this.lastIndexOf(x)},Trim(){return this.trim()},TrimStart(){return this.trimStart()},TrimEnd(...c){let s=''+this;if(!c.length)return s.trimEnd();while(s&&c.includes(s.at(-1)))s=s.slice(0,-1);return s},Split(x,o){let a=this.split(x);return o?a.filter(y=>y):a},ToString(){return ''+this},ToLowerInvariant(){return this.toLowerCase()},Replace(a,b){return this.replaceAll(a,b)},Any(f){return [...this].some(f)},Count(f){return [...this].filter(f).length}});
Object.defineProperty(S,'Length',{get(){return this.length}});
const A=Array.prototype; def(A,{CopyTo(t,at){for(let i=0;i<this.length;i++)t[at+i]=this[i]},Any(f){return this.some(f)},All(f){return this.every(f)},Count(f){return this.filter(f).length},Add(x){this.push(x)},Select(f){return this.map(f)},Contains(x){return this.includes(x)}});
Object.defineProperty(A,'Length',{get(){return this.length}});
def(Number.prototype,{ToString(f){return f==='x'?this.toString(16):f==='X'?this.toString(16).toUpperCase():''+this}});
class Headers{constructor(){this.m={}} TryGetValue(k,out){const v=this.m[k.toLowerCase()];out(v?.v);return !!v} ContainsKey(k){return k.toLowerCase() in this.m} GetValueOrDefault(k){return this.m[k.toLowerCase()]?.v} *[Symbol.iterator](){for(const k in this.m)yield{Key:this.m[k].k,Value:this.m[k].v}}}
globalThis.EchoMap=class extends Map{TryGetValue(k,out){out(super.get(k));return super.has(k)}};
function TryParse(data){
  if(!data.length)return null; const text=[...data].map(b=>b>127?'?':String.fromCharCode(b)).join('');
  const end=text.indexOf('\n'); if(end<0)return null; const line=text.slice(0,end).replace(/\r+$/,''); const sp=line.indexOf(' '); if(sp<0)return null;
  const rest=line.slice(sp+1), s2=rest.indexOf(' '), code=s2>=0?rest.slice(0,s2):rest; if(!/^\d+$/.test(code))return null;
  const h=new Headers; let pos=end+1; while(pos<text.length){let e=text.indexOf('\n',pos);if(e<0)e=text.length;const l=text.slice(pos,e).replace(/\r+$/,'');if(!l)break;const c=l.indexOf(':');if(c>0){const k=l.slice(0,c).trim(),v=l.slice(c+1).trim(),o=h.m[k.toLowerCase()];if(o)o.v+=', '+v;else h.m[k.toLowerCase()]={k,v}}pos=e+1}
  const he=text.indexOf('\r\n\r\n'); let body=null; if(he>=0&&he+4<text.length)body=text.slice(he+4,he+4+4096);
  return {StatusCode:+code,ReasonPhrase:s2>=0?rest.slice(s2+1):'',HttpVersion:line.slice(0,sp),Headers:h,Body:body,RawResponse:text.slice(0,8192)};
}
const sleep=ms=>new Promise(r=>setTimeout(r,ms));
class Client{
  async open(){this.buf=[];this.ended=false;await new Promise((ok,no)=>{this.s=net.connect({host,port,allowHalfOpen:true,noDelay:true},ok);this.s.on('error',e=>{this.ended=true;no(e)});this.s.on('data',d=>this.buf.push(d));this.s.on('end',()=>this.ended=true);this.s.on('close',()=>this.ended=true)})}
  async send(b){if(this.ended)return;await new Promise(r=>this.s.write(Buffer.from(b),()=>r()))}
  async read(){const t0=Date.now();let d;for(;;){d=Buffer.concat(this.buf);if(d.indexOf('\r\n\r\n')>=0)break;if(this.ended){this.buf=[];return[d,'ClosedByServer']}if(Date.now()-t0>5000){this.buf=[];return[d,'TimedOut']}await sleep(5)}await sleep(100);d=Buffer.concat(this.buf);this.buf=[];return[d,'Open']}
  state(){return this.ended&&!this.buf.length?'ClosedByServer':'Open'}
  close(){this.s.destroy()}
}
function evaluate(e,r,state){if(e.CustomValidator)return e.CustomValidator(r,state);if(e.ExpectedConnectionState&&state===e.ExpectedConnectionState)return'Pass';if(e.AllowConnectionClose&&state==='ClosedByServer'&&r===null)return'Pass';if(r===null)return e.AllowConnectionClose?'Pass':'Fail';return e.ExpectedStatus?.Contains(r.StatusCode)?'Pass':'Fail'}
const ctx={Host:host,Port:port,HostHeader:port===80?host:`${host}:${port}`};
async function single(t){const c=new Client;await c.open();await c.send(t.PayloadFactory(ctx));let[d,state]=await c.read();const r=TryParse(d);if(state==='Open'){await sleep(50);state=c.state()}c.close();return{verdict:evaluate(t.Expected,r,state),r,state,note:t.BehavioralAnalyzer?.(r)}}
async function seq(t){const c=new Client;await c.open();const res=[];let state='Open',last=null;
  for(const[i,st]of t.Steps.entries()){const Label=st.Label??`Step ${i+1}`;if(state!=='Open'){res.push({Label,Executed:false,ConnectionState:state});continue}
    const parts=st.SendPartsFactory?st.SendPartsFactory(ctx):[{PayloadFactory:x=>st.DynamicPayloadFactory?st.DynamicPayloadFactory(x,res):st.PayloadFactory(x)}];
    for(const p of parts){await c.send(p.PayloadFactory(ctx));if(p.DelayAfter){await sleep(p.DelayAfter);if(c.state()!=='Open')break}}
    let[d,s2]=await c.read();const r=TryParse(d);if(r)last=r;state=s2;if(state==='Open'){await sleep(50);state=c.state()}res.push({Label,Executed:true,Response:r,ConnectionState:state})}
  c.close();return{verdict:t.Validator(res),r:last,state,note:t.BehavioralAnalyzer?.(res),steps:res.map(x=>x.Executed?x.Response?.StatusCode:'-')}}
vm.runInThisContext(fs.readFileSync(file,'utf8').replace('let result = ({});','let result = new EchoMap;')+';globalThis.all=[...ComplianceSuite.GetTestCases(),...SmugglingSuite.GetTestCases(),...SmugglingSuite.GetSequenceTestCases(),...MalformedInputSuite.GetTestCases(),...NormalizationSuite.GetTestCases(),...CapabilitiesSuite.GetSequenceTestCases(),...CookieSuite.GetTestCases()]');
(async()=>{const sum={};for(const t of all){if(only&&!t.Id.includes(only))continue;let x;try{x=await(t.Steps?seq(t):single(t))}catch(e){x={verdict:'Error',note:e.stack.split('\n').slice(0,2).join(' '),state:'Error'}}
  const scored=t.Scored!==false; const k=(scored?'':'un')+'scored '+x.verdict; sum[k]=(sum[k]||0)+1;
  if(only||x.verdict!=='Pass')console.log(`${x.verdict}\t${t.Id}\t${scored?'':'unscored '}${t.RfcLevel??'Must'}\t${x.r?.StatusCode??'-'} ${x.state} ${x.steps??''}\twanted ${t.Expected?.Description??t.Expected?.ExpectedStatus?.t}\t${t.Description}\t${x.note??''}`)}
 console.log(all.length,sum)})();
