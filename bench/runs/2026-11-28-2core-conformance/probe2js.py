import re,sys,os
root=sys.argv[1]
D=root+'/src/Http11Probe/TestCases/Suites/'
def strings(src):
    """Replaces literals by placeholders; returns text and list of JS literals."""
    out=[];lits=[];i=0
    def conv(body):
        body=re.sub(r'\\x([0-9A-Fa-f]{1,4})',lambda m:'\\u{%s}'%m.group(1),body)
        body=re.sub(r'\\0','\\\\u{0}',body)
        return body
    while i<len(src):
        c=src[i]
        if src.startswith('//',i):
            j=src.find('\n',i); i=j; continue
        if c=='$' and src[i+1]=='"':
            j=i+2;res='`';
            while src[j]!='"':
                if src[j]=='\\':
                    m=re.match(r'\\x[0-9A-Fa-f]{1,4}|\\.',src[j:j+6]); res+=conv(m.group(0)); j+=len(m.group(0))
                elif src[j]=='{' and src[j+1]=='{': res+='{'; j+=2
                elif src[j]=='}' and src[j+1]=='}': res+='}'; j+=2
                elif src[j]=='{':
                    d=1;k=j+1
                    while d:
                        if src[k]=='"':
                            k+=1
                            while src[k]!='"': k+=1
                        if src[k]=='{':d+=1
                        if src[k]=='}':d-=1
                        k+=1
                    res+='${'+code(src[j+1:k-1])+'}'; j=k
                elif src[j]=='`': res+='\\`'; j+=1
                else: res+=src[j]; j+=1
            lits.append(res+'`'); out.append('\x01%d\x02'%(len(lits)-1)); i=j+1; continue
        if c=='"':
            j=i+1
            while src[j]!='"':
                j+=2 if src[j]=='\\' else 1
            lits.append('"'+conv(src[i+1:j])+'"'); out.append('\x01%d\x02'%(len(lits)-1)); i=j+1; continue
        if c=="'":
            j=i+1
            while src[j]!="'": j+=2 if src[j]=='\\' else 1
            lits.append("'"+conv(src[i+1:j])+"'"); out.append('\x01%d\x02'%(len(lits)-1)); i=j+1; continue
        out.append(c); i+=1
    return ''.join(out),lits
def patterns(t):
    t=re.sub(r'\bis not null\b','!= null',t); t=re.sub(r'\bis null\b','== null',t)
    while True:
        m=re.search(r'([\w.?\[\]]+) is (?=not |[(<>0-9\x01]|ConnectionState)',t)
        if not m: return t
        j=m.end();d=0;js=[]
        while True:
            n=re.match(r'\s*(not\b|and\b|or\b|>=|<=|<|>|\d+|ConnectionState\.\w+|\x01\d+\x02|\(|\))',t[j:])
            if not n: break
            k=n.group(1)
            if k==')' and d==0: break
            if k=='(':d+=1
            if k==')':d-=1
            js.append({'not':'!','and':'&&','or':'||'}.get(k,k)); j+=n.end()
        # tokens to expression over v
        e='';prev=None;neg=False
        for k in js:
            if re.match(r'\d|\x01|Conn',k):
                e+=('' if prev in('>=','<=','<','>') else 'v==')+k
            elif k in('>=','<=','<','>'): e+='v'+k
            else: e+=k
            prev=k
        t=t[:m.start()]+f'((v)=>({e}))({m.group(1)})'+t[j:]
KEYS='Id|Description|Category|RfcLevel|RfcReference|Scored|PayloadFactory|DynamicPayloadFactory|SendPartsFactory|Expected|ExpectedStatus|ExpectedConnectionState|AllowConnectionClose|CustomValidator|BehavioralAnalyzer|Steps|Validator|Label|DelayAfter'
def params(p):
    res=[]
    for x in p.split(','):
        x=x.strip()
        if not x: continue
        res.append(('...' if x.startswith('params') else '')+x.split()[-1])
    return ', '.join(res)
def code(src):
    t,l=strings(src)
    t=re.sub(r'^using .*$|^namespace .*$','',t,flags=re.M)
    t=re.sub(r'public static class (\w+)\s*\{',r'const \1 = (() => {',t)
    t=re.sub(r'(?:public|private) static IEnumerable<\w+> (\w+)\(\)',r'\1_is_generator(); function* \1()',t)
    t=re.sub(r'\w+_is_generator\(\); ','',t)
    t=re.sub(r'private const string (\w+)',r'const \1',t)
    t=re.sub(r'private static (?:\([^)]*\)|Func<.*?>|[\w?<>\[\], ]+?) (\w+)\(([^()]*)\)\s*=>',lambda m:f'const {m.group(1)} = ({params(m.group(2))}) =>',t)
    t=re.sub(r'private static (?:\([^)]*\)|Func<[^{;]*?>|[\w?<>\[\], ]+?) (\w+)\(([^()]*)\)\s*\{',lambda m:f'function {m.group(1)}({params(m.group(2))}) {{',t)
    t=re.sub(r'yield return','yield',t)
    t=re.sub(r'new (TestCase|SequenceTestCase|ExpectedBehavior|SequenceStep|SequenceSendPart)\s*\{','{',t)
    t=re.sub(r'^(\s+)(%s) ='%KEYS,r'\1\2:',t,flags=re.M)
    t=re.sub(r'(\{|,) (%s) = '%KEYS,r'\1 \2: ',t)
    t=patterns(t)
    t=re.sub(r'foreach \(var \(([^)]*)\) in ([^)]*)\)',r'for (const [\1] of entries(\2))',t)
    t=re.sub(r'foreach \(var (\w+) in',r'for (const \1 of',t)
    t=re.sub(r'var \(([^)]*)\) =',r'let [\1] =',t)
    t=re.sub(r'\bout (?:var )?(\w+)',r'(x) => { \1 = x }',t)
    t=re.sub(r'\bconst string\b','const',t)
    t=re.sub(r'\bbyte\[\] (\w+) =',r'let \1 =',t)
    t=re.sub(r'\bstring\?? (\w+) =',r'let \1 =',t)
    t=re.sub(r'\bvar ','let ',t)
    t=re.sub(r'new byte\[(.*?)\];',r'new Array(\1).fill(0);',t)
    t=re.sub(r'new string\(',r'repeat(',t)
    t=re.sub(r'new List<\w+>\(\)','[]',t)
    t=re.sub(r'new Dictionary<[^(]*\(\)','({})',t)
    t=re.sub(r'\bstring\.','Str.',t); t=re.sub(r'\bint\.','Int.',t)
    t=re.sub(r'return \((\w+), (\w+), (\w+)\);',r'return [\1, \2, \3];',t)
    t=re.sub(r'(\w+)\[([^\[\]]*?)\.\.([^\[\]]*?)\]',r'sl(\1, "\2", (\1) => \3)'.replace('"','`'),t)
    def slc(m):
        v,a,b=m.group(1),m.group(2).strip(),m.group(3).strip()
        b=re.sub(r'\^(\d+)',rf'{v}.length-\1',b)
        return f'{v}.slice({a or 0}'+(f', {b}' if b else '')+')'
    t=re.sub(r'sl\((\w+), `(.*?)`, \(\1\) => (.*?)\)(?=[.;, ]|$)',slc,t)
    t=t.replace('@"','"')
    t=re.sub(r'!(?=[;,.)\]])','',t)
    for i in range(len(l)-1,-1,-1): t=t.replace('\x01%d\x02'%i,l[i])
    return t
print('"use sloppy";')
for f in ['Compliance','Smuggling','MalformedInput','Normalization','Capabilities','Cookie']:
    s=open(D+f+'Suite.cs',encoding='utf-8-sig').read()
    js=code(s).rstrip()
    assert js.endswith('}')
    names=[n for n in('GetTestCases','GetSequenceTestCases') if 'function* '+n in js]
    print(js[:-1]+'return {'+','.join(names)+'};})();')
