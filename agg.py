import sys,re,subprocess,collections
n=int(sys.argv[2])
t=subprocess.run(['perf','script','-i',sys.argv[1]],capture_output=True,text=True).stdout
c=collections.Counter()
for blk in t.split('\n\n'):
    ls=blk.strip('\n').split('\n')
    if len(ls)<2: continue
    ev=re.search(r'probe_libc:(\w+)',ls[0]).group(1); b=int(ls[0].split('bytes=')[1],16)
    fr=[re.sub(r'\+0x.*','',l.strip().split(' ',1)[1]) for l in ls[1:] if ' ' in l.strip()]
    fr=[f for f in fr if not re.match(r'(__GI|malloc|realloc|calloc|alloc::raw_vec|alloc::alloc|__rust|_int|__libc)',f)]
    fr=[re.sub(r'headway_(\w+)::','\\1::',f) for f in fr]
    c[(ev,b,' < '.join(f[:70] for f in fr[:3]))]+=1
tot=0
for (ev,b,f),k in sorted(c.items(),key=lambda x:-x[1]):
    if k>=n*0.6: print(f'{k/n:5.2f} {ev:8} {b:6} {f}'); 
    tot+=k
print(tot/n)
