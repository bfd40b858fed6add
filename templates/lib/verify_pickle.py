# lib/verify_pickle.py: walks a pickle's opcodes on a stack of inert nodes. Nothing is imported, called or built.
MAX_OPCODES = 3000000
SAFE_NAMES = frozenset(
    "collections.OrderedDict collections.Counter _codecs.encode builtins.bytearray builtins.set builtins.complex"
    " __builtin__.set __builtin__.bytearray __builtin__.complex builtins.frozenset"
    " torch.Size torch.device torch.Tensor torch.nn.parameter.Parameter torch.nn.parameter.Buffer torch.serialization._get_layout"
    " torch._utils._rebuild_tensor torch._utils._rebuild_tensor_v2 torch._utils._rebuild_tensor_v3 torch._utils._rebuild_parameter"
    " torch._utils._rebuild_parameter_with_state torch._utils._rebuild_qtensor torch._utils._rebuild_sparse_tensor"
    " torch._utils._rebuild_meta_tensor_no_storage torch._utils._rebuild_nested_tensor torch._tensor._rebuild_from_type_v2"
    " torch.per_tensor_affine torch.per_tensor_symmetric torch.per_channel_affine torch.per_channel_symmetric"
    " torch.per_channel_affine_float_qparams torch.storage.UntypedStorage torch.storage.TypedStorage".split())
STORAGES = {  # class in torch: bytes of an element, kind of floating number or ''
    "DoubleStorage": (8, "f8"), "FloatStorage": (4, "f4"), "HalfStorage": (2, "f2"), "BFloat16Storage": (2, "bf2"),
    "LongStorage": (8, ""), "IntStorage": (4, ""), "ShortStorage": (2, ""), "CharStorage": (1, ""), "ByteStorage": (1, ""),
    "BoolStorage": (1, ""), "ComplexDoubleStorage": (16, "f8"), "ComplexFloatStorage": (8, "f4"), "QInt8Storage": (1, ""),
    "QUInt8Storage": (1, ""), "QInt32Storage": (4, ""), "QUInt4x2Storage": (1, ""), "QUInt2x4Storage": (1, ""), "UntypedStorage": (1, "")}
DTYPES = frozenset(
    "float64 double float32 float float16 half bfloat16 complex32 complex64 cfloat complex128 cdouble int64 long int32 int int16 short"
    " int8 uint8 uint16 uint32 uint64 bool quint8 qint8 qint32 quint4x2 quint2x4 float8_e4m3fn float8_e4m3fnuz float8_e5m2"
    " float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2".split())
# Names that start something. No --allow makes a file ok that holds one.
NEVER = re.compile(
    r"(os|posix|nt|subprocess|sys|runpy|pty|shutil|socket|ctypes|importlib|pickle|_pickle|code|webbrowser|commands|marshal|operator"
    r"|multiprocessing|asyncio|threading|pip|timeit|pdb|bdb|cProfile|profile|torch\.hub|torch\.serialization|torch\.jit|torch\.storage"
    r"|numpy\.testing|numpy\.f2py)(\..*)?$|types\.(Function|Code)Type$|(builtins|__builtin__)\.(eval|exec|execfile|compile|open"
    r"|__import__|getattr|setattr|delattr|globals|locals|vars|apply|input|breakpoint|help|map|filter)$|\(")


class Node:
    """Something that the pickle would have built."""

    __slots__ = ("kind", "items", "pairs")

    def __init__(self, kind, items):
        self.kind, self.items, self.pairs = kind, items, []


def safe_name(name):
    """True for a name that plain checkpoints need and that starts nothing."""
    if name in SAFE_NAMES:
        return True
    head, _, tail = name.rpartition(".")
    return head == "torch" and (tail in STORAGES or tail in DTYPES)


class Walk:
    """The outcome for one pickle: root node, names, persistent ids, number of opcodes, unread rest."""

    def __init__(self, stream):
        self.names, self.persistent, self.count = set(), [], 0
        self.stack, self.marks, self.memo = [], [], {}
        start = stream.tell()
        try:
            for op, arg, _ in pickletools.genops(stream):
                self.count += 1
                if self.count > MAX_OPCODES:
                    raise Finding(UNPROVEN, "a pickle of more than %d opcodes is not walked" % MAX_OPCODES)
                self._step(op.name, arg)
            if len(self.stack) != 1 or self.marks:
                raise Finding(CORRUPT, "a pickle leaves %d objects on its stack" % len(self.stack))
        except (IndexError, KeyError, AttributeError, TypeError):
            raise Finding(CORRUPT, "opcode %d of a pickle does not fit its stack" % self.count)
        except (ValueError, UnicodeError, struct.error, OverflowError) as error:
            rest = stream.read(1)
            if start == stream.tell() or (not rest and "unknown" not in str(error)):
                raise Finding(TRUNCATED, "a pickle ends before its STOP")
            raise Finding(CORRUPT, "not a pickle at opcode %d" % (self.count + 1))
        self.root = self.stack.pop()
        self.memo = None

    def _pop_mark(self):
        mark = self.marks.pop()
        if mark > len(self.stack):
            raise IndexError
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def _pop(self):
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise IndexError
        return self.stack.pop()

    def _name(self, name):
        self.names.add(name)
        self.stack.append(Node("name", [name]))

    def _call(self, function, args):
        if not (isinstance(function, Node) and function.kind == "name"):
            self.names.add("(a computed callable)")
        self.stack.append(Node("call", [function] + args))

    def _step(self, op, arg):
        stack = self.stack
        if op in ("PROTO", "FRAME", "READONLY_BUFFER", "STOP"):
            pass
        elif op == "MARK":
            self.marks.append(len(stack))
        elif op in ("EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "EMPTY_TUPLE"):
            stack.append(Node(op[6:].lower(), []))
        elif op in ("LIST", "TUPLE", "FROZENSET"):
            stack.append(Node(op.lower(), self._pop_mark()))
        elif op in ("TUPLE1", "TUPLE2", "TUPLE3"):
            items = [self._pop() for _ in range(int(op[5]))]
            stack.append(Node("tuple", items[::-1]))
        elif op == "DICT":
            items = self._pop_mark()
            stack.append(Node("dict", []))
            stack[-1].pairs = list(zip(items[::2], items[1::2]))
        elif op == "APPEND":
            item = self._pop()
            stack[-1].items.append(item)
        elif op in ("APPENDS", "ADDITEMS"):
            items = self._pop_mark()
            stack[-1].items.extend(items)
        elif op == "SETITEM":
            value, key = self._pop(), self._pop()
            stack[-1].pairs.append((key, value))
        elif op == "SETITEMS":
            items = self._pop_mark()
            stack[-1].pairs.extend(zip(items[::2], items[1::2]))
        elif op == "POP":
            if self.marks and self.marks[-1] == len(stack):
                self.marks.pop()
            else:
                stack.pop()
        elif op == "POP_MARK":
            self._pop_mark()
        elif op == "DUP":
            stack.append(stack[-1])
        elif op in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[int(arg)])
        elif op in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[int(arg)] = stack[-1]
        elif op == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        else:
            self._step_name(op, arg)

    def _step_name(self, op, arg):
        """Opcodes that name something or would call it; what is left pushes a plain value."""
        if op == "GLOBAL":
            self._name(".".join(arg.split(" ", 1)))
        elif op == "STACK_GLOBAL":
            name, module = self._pop(), self._pop()
            known = isinstance(name, str) and isinstance(module, str)
            self._name("%s.%s" % (module, name) if known else "(a computed name)")
        elif op == "INST":
            args = self._pop_mark()
            self._name(".".join(arg.split(" ", 1)))
            self._call(self.stack.pop(), args)
        elif op == "OBJ":
            args = self._pop_mark()
            self._call(args[0], args[1:])
        elif op in ("REDUCE", "NEWOBJ"):
            args = self._pop()
            self._call(self._pop(), [args])
        elif op == "NEWOBJ_EX":
            more, args = self._pop(), self._pop()
            self._call(self._pop(), [args, more])
        elif op == "BUILD":
            state = self._pop()
            self.stack[-1].items.append(state)
        elif op in ("EXT1", "EXT2", "EXT4"):
            self._name("(extension code %d)" % arg)
        elif op in ("PERSID", "BINPERSID"):
            node = Node("persistent", [arg if op == "PERSID" else self._pop()])
            self.persistent.append(node)
            self.stack.append(node)
        else:
            self.stack.append(arg)


def judge_names(plan, names, allow):
    """Note the names that neither plain checkpoints need nor a person has allowed."""
    plan.names |= names
    asked = sorted(name for name in names if not safe_name(name) and (name not in allow or NEVER.match(name)))
    if asked:
        plan.found(NEEDS, " ".join(show(name) for name in asked[:20]) + (" and %d more" % (len(asked) - 20) if asked[20:] else ""))


def named_nodes(root):
    """Every node that rebuilds a tensor, with the keys that lead to it. Not recursive: nesting may be hostile."""
    todo, seen = [(root, "")], set()
    while todo:
        node, name = todo.pop()
        if not isinstance(node, Node) or id(node) in seen:
            continue
        seen.add(id(node))
        if node.kind == "call" and isinstance(node.items[0], Node) and node.items[0].items[:1]:
            function = node.items[0].items[0]
            if function in TENSOR_CALLS and len(node.items) > 1 and isinstance(node.items[1], Node):
                yield name, function, node.items[1].items
                continue
        inner = [(item, name) for item in node.items]
        for key, value in node.pairs:
            part = key if isinstance(key, (str, int)) else "?"
            inner.append((value, ("%s/%s" % (name, part) if name else str(part))[-200:]))
        todo.extend(reversed(inner))


TENSOR_CALLS = frozenset("torch._utils." + one for one in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor"))
