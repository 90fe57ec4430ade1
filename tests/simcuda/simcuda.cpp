// simcuda: a simulated CUDA device for a CPU-only build of torch.
//
// Registers, under torch's own CUDA dispatch key, a device whose memory is host memory and whose streams are queues
// that run NOTHING until something forces them, in an order chosen to be the worst that CUDA's rules allow:
//   * an operator that only writes to its arguments (in place, out=, _foreach_*_, fused optimizers) is queued on the
//   current
//     stream and runs when it is forced: by a host read, a synchronisation, or a functional operator;
//   * an asynchronous copy (non_blocking, page-locked host side) is queued, and its target is poisoned until it has
//   run;
//   * freed memory goes to the next allocation of its size at once (as in the caching allocator), and is poisoned in
//   the
//     order of the stream that it was allocated on; `record_stream` holds it back until what that stream had queued
//     when the memory was freed has run.
// A device's memory and the page-locked memory can be bounded, a device can be lost, and a forked child may not use
// one. So code that forgets to wait for a stream, reads a buffer before its event, or frees what another stream reads
// gets wrong numbers every time, not once in a thousand.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>
#include <unordered_set>

namespace sim {
using at::Tensor;
using c10::IValue;
using Stack = torch::jit::Stack;
using Key = std::pair<int, int64_t>;  // device, stream
struct Task {
  std::function<void()> run;
  bool waits = false;
  Key other{};
  uint64_t position = 0;
  bool apart = false;  // it waits for another process: meanwhile this one goes on
};
struct Queue {
  std::deque<Task> tasks;
  uint64_t enqueued = 0, done = 0;
  std::optional<std::thread::id> runs{};  // which thread runs a task of it
};
struct Event {
  Key key{};
  uint64_t position = 0;
  int asked = 0;
  std::chrono::steady_clock::time_point at;
};

class Mutex {  // recursive; whoever holds it may leave it to others for a while, and Python's with it
 public:
  void lock() {
    mutex_.lock();
    depth_++;
  }
  void unlock() {
    depth_--;
    mutex_.unlock();
  }
  void leave(const std::function<void()>& meanwhile) {
    const int depth = std::exchange(depth_, 0);
    for (int i = 0; i < depth; i++) mutex_.unlock();
    {  // what a thread waits for may need Python: gloo notes the frames of its caller
      std::optional<pybind11::gil_scoped_release> left;
      if (Py_IsInitialized() && PyGILState_Check()) left.emplace();
      meanwhile();
    }
    for (int i = 0; i < depth; i++) mutex_.lock();
    depth_ = depth;
  }

 private:
  std::recursive_mutex mutex_;
  int depth_ = 0;
};
Mutex mutex_;
using Lock = std::lock_guard<Mutex>;
// A kernel runs while the lock is held, so a fork would often find it held; the real allocator holds its own for a moment.
const int in_forks = pthread_atfork([] { mutex_.lock(); }, [] { mutex_.unlock(); }, [] { new (&mutex_) Mutex(); });
std::map<Key, Queue> queues;
int devices = 2;
bool lazy_main = true, lazy_side = true, chaotic = false, poison = true;
int lag_ms = 0, sync_debug = 0;
std::map<std::string, int64_t> syncs, waits_of_main;
const std::thread::id main_thread = std::this_thread::get_id();
pid_t owner = getpid();
bool lost = false;
void waits(const char* what) {
  if (std::this_thread::get_id() == main_thread) waits_of_main[what]++;
}
void usable() {  // as the driver answers a device that failed, and torch a child process
  if (getpid() != owner)
    throw std::runtime_error(
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' "
        "start method");
  if (lost) throw c10::AcceleratorError({__func__, __FILE__, 0}, 719, "CUDA error: unspecified launch failure");
}
std::mt19937 dice{0};
std::map<std::string, int64_t> counts;
int64_t next_stream = 1;
thread_local int device_now = 0;
thread_local std::map<int, int64_t> stream_now;

void synchronises(const std::string& what) {  // as torch.cuda.set_sync_debug_mode tells
  syncs[what]++;
  waits(what.c_str());
  if (sync_debug == 2) throw std::runtime_error("called a synchronizing CUDA operation: " + what);
  if (sync_debug == 1) TORCH_WARN("called a synchronizing CUDA operation: ", what);
}

Key here(int device = -1) {
  int d = device < 0 ? device_now : device;
  return {d, stream_now[d]};
}

struct Running {  // one task, also where it fails
  Queue& q;
  std::optional<std::thread::id> before;
  explicit Running(Queue& q) : q(q), before(std::exchange(q.runs, std::this_thread::get_id())) {}
  ~Running() {
    q.runs = before;
    q.done++;
  }
};
void run_until(Key key, uint64_t position) {
  Queue& q = queues[key];
  while (q.done < position) {
    if (q.runs && *q.runs != std::this_thread::get_id()) {
      mutex_.leave([] { std::this_thread::sleep_for(std::chrono::microseconds(50)); });
      continue;
    }
    if (q.tasks.empty()) return;
    Task task = std::move(q.tasks.front());
    q.tasks.pop_front();
    Running running(q);
    if (task.waits)
      run_until(task.other, task.position);
    else if (task.apart)
      mutex_.leave(task.run);
    else
      task.run();
  }
}
void drain(Key key) { run_until(key, queues[key].enqueued); }
void drain_device(int d) {
  for (auto& [k, q] : queues)
    if (k.first == d) drain(k);
}
void stir() {  // the device goes on by itself: some queue, some way
  if (!chaotic) return;
  for (auto& [k, q] : queues)
    if (!q.tasks.empty() && dice() % 4 == 0) run_until(k, q.done + 1 + dice() % q.tasks.size());
}
void enqueue(Key key, Task task) {
  Queue& q = queues[key];
  q.tasks.push_back(std::move(task));
  q.enqueued++;
  bool lazy = key.second == 0 ? lazy_main : lazy_side;
  if (!lazy) drain(key);
  stir();
}

// --- memory
struct Block {
  size_t size;
  Key key;
  std::vector<Key> streams;
};
struct Held {
  void* p;
  std::vector<std::pair<Key, uint64_t>> until;
};  // freed, and perhaps still read by other streams
struct Memory {
  int64_t limit = 15ll << 30, in_use = 0, peak = 0, reserved = 0, peak_reserved = 0;
};
std::unordered_map<void*, Block> blocks;
std::map<std::pair<Key, size_t>, std::vector<void*>> spare;
std::vector<Held> held;
std::map<char*, size_t> pinned;
Memory memory[8];

void reusable(void* p) {
  Block& b = blocks[p];
  if (poison) enqueue(b.key, {[p, n = b.size] { memset(p, 0xFF, n); }});
  spare[{b.key, b.size}].push_back(p);
}
void release_held() {
  for (size_t i = 0; i < held.size();) {
    bool done = true;
    for (auto& [k, position] : held[i].until) done &= queues[k].done >= position;
    if (!done) {
      i++;
      continue;
    }
    void* p = held[i].p;
    held.erase(held.begin() + i);
    reusable(p);
  }
}
void give_back(void* p) {
  if (!p) return;
  Lock lock(mutex_);
  Block& b = blocks[p];
  memory[b.key.first].in_use -= b.size;
  counts["frees"]++;
  if (b.streams.empty()) {
    reusable(p);
    return;
  }
  Held h{p, {}};
  for (Key k : b.streams) h.until.push_back({k, queues[k].enqueued});
  b.streams.clear();
  held.push_back(std::move(h));
}
void empty_cache(int d) {  // as cudaFree does, it waits for the device
  drain_device(d);
  release_held();
  drain_device(d);
  for (auto& [where, list] : spare)
    if (where.first.first == d) {
      for (void* p : list) {
        memory[d].reserved -= blocks[p].size;
        blocks.erase(p);
        free(p);
      }
      list.clear();
    }
}
struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t n) override {
    Lock lock(mutex_);
    usable();
    size_t size = std::max<size_t>(512, (n + 511) / 512 * 512);
    Key key = here();
    Memory& m = memory[key.first];
    void* p = nullptr;
    if (n) {
      release_held();
      auto& list = spare[{key, size}];
      if (!list.empty()) {
        p = list.back();
        list.pop_back();
        counts["reused"]++;
      } else {
        if (m.reserved + (int64_t)size > m.limit) {
          counts["memory_full"]++;
          empty_cache(key.first);
        }
        TORCH_CHECK_WITH(OutOfMemoryError, m.reserved + (int64_t)size <= m.limit,
                         "CUDA out of memory. Tried to allocate ", size, " bytes. GPU ", key.first, " has ",
                         m.limit - m.reserved, " bytes free (simulated).");
        p = aligned_alloc(512, size);
        memset(p, 0xFF, size);
        blocks[p] = {size, key, {}};
        m.reserved += size;
        m.peak_reserved = std::max(m.peak_reserved, m.reserved);
      }
      m.in_use += size;
      m.peak = std::max(m.peak, m.in_use);
      counts["allocations"]++;
    }
    return {p, p, &give_back, c10::Device(c10::kCUDA, key.first)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* d, const void* s, size_t n) const override {
    Lock lock(mutex_);
    drain(here());
    memcpy(d, s, n);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    Lock lock(mutex_);
    empty_cache(device_now);
  }
  void recordStream(const c10::DataPtr& ptr, c10::Stream s) override {
    Lock lock(mutex_);
    Key k{s.device_index(), s.id()};
    counts["record_stream"]++;
    auto it = blocks.find(ptr.get());
    if (it != blocks.end() && k != it->second.key) it->second.streams.push_back(k);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex d) override {
    Lock lock(mutex_);
    memory[d].peak = memory[d].in_use;
    memory[d].peak_reserved = memory[d].reserved;
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex d) override {
    Lock lock(mutex_);
    return {memory[d].limit - memory[d].reserved, memory[d].limit};
  }
};
DeviceMemory device_memory;
int64_t pin_limit = -1, pin_bytes = 0;
// As the real ones do: their destructors ask the device, which a forked child of the process that used it does not have.
void freed_by_its_process(const char* what) noexcept {
  if (owner == getpid()) return;
  fprintf(stderr, "simulated CUDA: %s was freed in a forked child: initialization error\n", what);
  abort();
}
size_t power2(size_t n) {
  size_t p = 1;
  while (p < n) p <<= 1;
  return p;
}
void unpin(void* p) {
  if (!p) return;
  freed_by_its_process("page-locked memory");
  Lock lock(mutex_);
  auto it = pinned.find((char*)p);
  // The real caching host allocator waits for the events of copies that use it; closures here hold a reference instead.
  pin_bytes -= it->second;
  pinned.erase(it);
  free(p);
}
struct HostMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    Lock lock(mutex_);
    usable();
    if (!n) return {nullptr, nullptr, &unpin, c10::Device(c10::kCPU)};
    size_t size = power2(std::max<size_t>(n, 64));
    TORCH_CHECK(pin_limit < 0 || pin_bytes + (int64_t)size <= pin_limit,
                "CUDA error: out of memory (simulated pin limit)");
    void* p = aligned_alloc(64, size);
    pinned[(char*)p] = size;
    pin_bytes += size;
    counts["pinned"]++;
    return {p, p, &unpin, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* d, const void* s, size_t n) const override { memcpy(d, s, n); }
};
HostMemory host_memory;
bool is_pinned(const void* data) {
  Lock lock(mutex_);
  auto it = pinned.upper_bound((char*)data);
  if (it == pinned.begin()) return false;
  --it;
  return (char*)data < it->first + it->second;
}

// --- random numbers of a device
struct Gen final : c10::GeneratorImpl {
  at::Generator inner;
  explicit Gen(int d)
      : GeneratorImpl(c10::Device(c10::kCUDA, d), c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        inner(at::detail::createCPUGenerator(67280421310721ull)) {}
  void set_current_seed(uint64_t s) override { inner.set_current_seed(s); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    inner.set_state(Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<c10::TensorImpl*>(&state))));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.get_state().getIntrusivePtr(); }
  Gen* clone_impl() const override {
    auto g = new Gen(device().index());
    g->inner = inner.clone();
    return g;
  }
};
std::vector<at::Generator>& gens() {
  static std::vector<at::Generator> all = [] {
    std::vector<at::Generator> v;
    for (int i = 0; i < 8; i++) v.push_back(at::make_generator<Gen>(i));
    return v;
  }();
  return all;
}
at::Generator& inner(const at::Generator& g) { return static_cast<Gen*>(g.unsafeGetGeneratorImpl())->inner; }

// --- the device
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device d) const override {
    auto old = getDevice();
    setDevice(d);
    return old;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, (c10::DeviceIndex)device_now}; }
  void setDevice(c10::Device d) const override {
    if (d.index() >= 0) {
      TORCH_CHECK(d.index() < devices, "CUDA error: invalid device ordinal");
      device_now = d.index();
    }
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.index() >= 0) device_now = d.index();
  }
  c10::Stream stream(int d, int64_t id) const {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, d), id);
  }
  int index(c10::Device d) const { return d.has_index() ? d.index() : device_now; }
  c10::Stream getStream(c10::Device d) const override {
    int i = index(d);
    return stream(i, stream_now[i]);
  }
  c10::Stream getDefaultStream(c10::Device d) const override { return stream(index(d), 0); }
  c10::Stream getNewStream(c10::Device d, int) const override {
    Lock lock(mutex_);
    counts["streams"]++;
    return stream(index(d), next_stream++);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    int d = s.device_index();
    auto old = stream(d, stream_now[d]);
    stream_now[d] = s.id();
    return old;
  }
  void* getStreamNativeHandle(const c10::Stream s) const override { return (void*)s.id(); }
  c10::DeviceIndex deviceCount() const noexcept override { return devices; }
  void record(void** event, const c10::Stream& s, c10::DeviceIndex, c10::EventFlag) const override {
    Lock lock(mutex_);
    usable();
    if (!*event) *event = new Event();
    auto* e = (Event*)*event;
    e->key = {s.device_index(), s.id()};
    e->position = queues[e->key].enqueued;
    e->asked = 0;
    e->at = std::chrono::steady_clock::now();
    counts["events"]++;
  }
  void block(void* event, const c10::Stream& s) const override {
    if (!event) return;
    Lock lock(mutex_);
    auto* e = (Event*)event;
    counts["stream_waits"]++;
    Task t;
    t.waits = true;
    t.other = e->key;
    t.position = e->position;
    enqueue({s.device_index(), s.id()}, std::move(t));
  }
  bool queryEvent(void* event) const override {
    if (!event) return true;
    Lock lock(mutex_);
    usable();
    auto* e = (Event*)event;
    if (queues[e->key].done < e->position && ++e->asked > 3) run_until(e->key, e->position);
    return queues[e->key].done >= e->position;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (event) freed_by_its_process("an event");
    delete (Event*)event;
  }
  static void lag() {
    if (lag_ms) std::this_thread::sleep_for(std::chrono::milliseconds(lag_ms));
  }
  void synchronizeEvent(void* event) const override {
    if (!event) return;
    {
      Lock lock(mutex_);
      usable();
      auto* e = (Event*)event;
      if (queues[e->key].done >= e->position) return;
      waits("event");
    }
    lag();
    Lock lock(mutex_);
    usable();
    auto* e = (Event*)event;
    counts["event_syncs"]++;
    run_until(e->key, e->position);
  }
  bool queryStream(const c10::Stream& s) const override {
    Lock lock(mutex_);
    usable();
    auto& q = queues[{s.device_index(), s.id()}];
    return q.tasks.empty();
  }
  void synchronizeStream(const c10::Stream& s) const override {
    Lock lock(mutex_);
    usable();
    waits("stream");
    counts["stream_syncs"]++;
    drain({s.device_index(), s.id()});
  }
  void synchronizeDevice(c10::DeviceIndex d) const override {
    Lock lock(mutex_);
    usable();
    waits("device");
    counts["device_syncs"]++;
    drain_device(d);
  }
  void recordDataPtrOnStream(const c10::DataPtr& p, const c10::Stream& s) const override {
    device_memory.recordStream(p, s);
  }
  double elapsedTime(void* a, void* b, c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(((Event*)b)->at - ((Event*)a)->at).count();
  }
};
static c10::impl::DeviceGuardImplRegistrar guard_registrar(c10::kCUDA, new Guard());

// --- operators
Tensor host_view(const Tensor& t) {
  auto options = t.options().device(at::kCPU).pinned_memory(false).requires_grad(false);
  if (!t.numel()) return at::empty_strided(t.sizes(), t.strides(), options);
  Tensor view = at::from_blob(t.data_ptr(), t.sizes(), t.strides(), options);
  view._set_conj(t.is_conj());
  view._set_neg(t.is_neg());
  return view;
}
struct Below {  // the operator itself on host memory, without autograd, autocast or modes
  c10::impl::ExcludeDispatchKeyGuard guard{
      c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::Python,
                           c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::Functionalize})};
};
int dev_of(const Tensor& t) { return t.device().index(); }
Tensor move_in(const Tensor& host, int d) {  // a result
  if (!host.defined()) return host;
  auto t = at::empty_strided(host.sizes(), host.strides(), host.options().device(c10::Device(c10::kCUDA, d)));
  drain(here(d));  // memory that was held back until now is poisoned first
  if (host.numel()) host_view(t).copy_(host);
  return t;
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const size_t n = schema.arguments().size();
  const size_t begin = stack->size() - n;
  std::vector<IValue> args(stack->begin() + begin, stack->end()), host(args);
  int d = -1;
  bool random = op.hasTag(at::Tag::nondeterministic_seeded), defer = true, sync_cpu = false;
  std::vector<std::pair<Tensor, Tensor>> resized;
  at::Generator generator;
  auto look = [&](const Tensor& t) {
    if (t.defined() && t.is_cuda() && d < 0) d = dev_of(t);
  };
  for (auto& a : args) {
    if (a.isTensor())
      look(a.toTensor());
    else if (a.isTensorList())
      for (const Tensor& t : a.toTensorList()) look(t);
    else if (a.isOptionalTensorList())
      for (const std::optional<Tensor>& t : a.toOptionalTensorList())
        if (t)
          look(*t);
        else if (a.isDevice() && a.toDevice().is_cuda()) {
          d = a.toDevice().has_index() ? a.toDevice().index() : device_now;
        }
  }
  if (d < 0) d = device_now;
  bool reduces = false;  // to a number; what only changes one in place may be late
  for (auto& a : args) reduces |= a.isTensor() && a.toTensor().defined() && a.toTensor().dim() > 0;
  auto convert = [&](const Tensor& t, bool writes, bool is_out = false) -> Tensor {
    if (!t.defined()) return t;
    if (!t.is_cuda()) {
      TORCH_CHECK(!writes || t.numel() == 0 || t.dim() == 0, "simcuda: ", schema.name(), " writes host memory");
      if (writes) sync_cpu = true;
      return writes ? t : t.clone();
    }
    TORCH_CHECK(dev_of(t) == d || t.dim() == 0,
                "Expected all tensors to be on the same device, but found at least two devices, cuda:", d, " and ",
                t.device());
    if (writes && is_out && (!t.numel() || (!t.dim() && reduces))) {  // a loss resizes it there and back
      auto fresh = at::empty({0}, t.options().device(at::kCPU));
      resized.push_back({t, fresh});
      return fresh;
    }
    return host_view(t);
  };
  Lock lock(mutex_);
  usable();
  {
    Below below;
    for (size_t i = 0; i < n; i++) {
      auto info = schema.arguments()[i].alias_info();
      bool writes = info && info->isWrite();
      IValue& a = args[i];
      if (a.isTensor())
        host[i] = convert(a.toTensor(), writes, schema.arguments()[i].is_out());
      else if (a.isTensorList()) {
        c10::List<Tensor> l;
        for (const Tensor& t : a.toTensorList()) l.push_back(convert(t, writes));
        host[i] = l;
      } else if (a.isOptionalTensorList()) {
        c10::List<std::optional<Tensor>> l;
        for (const std::optional<Tensor>& t : a.toOptionalTensorList())
          l.push_back(t ? std::optional<Tensor>(convert(*t, writes)) : t);
        host[i] = l;
      } else if (a.isDevice())
        host[i] = c10::Device(c10::kCPU);
      else if (a.isGenerator() && a.toGenerator().device().is_cuda()) {
        generator = a.toGenerator();
        host[i] = inner(generator);
      }
    }
  }
  if (!generator.defined()) generator = gens()[d];
  for (auto& r : schema.returns())
    if (!r.alias_info() || !r.alias_info()->isWrite()) defer = false;
  if (random || sync_cpu || !resized.empty() || schema.name() == "aten::_amp_foreach_non_finite_check_and_unscale_x")
    defer = false;
  auto results = std::make_shared<Stack>();
  auto work = [op, host, results, random, generator] {
    Below below;
    at::AutoDispatchBelowADInplaceOrView no_grad;
    *results = host;
    if (!random) {
      op.callBoxed(results.get());
      return;
    }
    at::Generator cpu = at::detail::getDefaultCPUGenerator();
    at::Generator mine = inner(generator);
    Tensor saved = cpu.get_state().clone();
    cpu.set_state(mine.get_state());
    std::exception_ptr error;
    try {
      op.callBoxed(results.get());
    } catch (...) {
      error = std::current_exception();
    }
    // an explicit generator was drawn from itself; without one the default was, under this device's state
    bool given = false;
    for (auto& a : host) given |= a.isGenerator();
    if (!given) mine.set_state(cpu.get_state());
    cpu.set_state(saved);
    if (error) std::rethrow_exception(error);
  };
  static const std::unordered_set<std::string> reads{"aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2",
                                                     "aten::masked_select",       "aten::equal",   "aten::is_nonzero"};
  if (reads.count(schema.name())) synchronises(schema.name());
  Key key{d, stream_now[d]};
  counts[defer ? "queued" : "forced"]++;
  enqueue(key, {work});
  if (!defer) drain(key);
  std::vector<IValue> returned;
  for (size_t r = 0; r < schema.returns().size(); r++) {
    auto info = schema.returns()[r].alias_info();
    if (info && info->isWrite()) {
      for (size_t i = 0; i < n; i++) {
        auto ai = schema.arguments()[i].alias_info();
        if (ai && *ai == *info) {
          returned.push_back(args[i]);
          break;
        }
      }
      continue;
    }
    TORCH_CHECK(!info, "simcuda: a view that is not known: ", schema.name());
    IValue& v = (*results)[r];
    if (v.isTensor())
      returned.push_back(move_in(v.toTensor(), d));
    else if (v.isTensorList()) {
      c10::List<Tensor> l;
      for (const Tensor& t : v.toTensorList()) l.push_back(move_in(t, d));
      returned.push_back(l);
    } else
      returned.push_back(v);
  }
  for (auto& [t, fresh] : resized) {
    at::native::resize_(t, fresh.sizes(), std::nullopt);
    if (fresh.numel()) {
      Below b;
      host_view(t).copy_(fresh);
    }
  }
  torch::jit::drop(*stack, n);
  for (auto& v : returned) stack->push_back(v);
}

Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dt, std::optional<c10::Layout>,
             std::optional<c10::Device> dev, std::optional<bool> pin, std::optional<c10::MemoryFormat> mf) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  c10::OptionalDeviceGuard g(
      dev ? std::optional<c10::Device>(dev->has_index() ? *dev : c10::Device(c10::kCUDA, device_now)) : std::nullopt);
  return at::detail::empty_generic(size, &device_memory, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(dt), mf);
}
Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dt,
                     std::optional<c10::Layout>, std::optional<c10::Device> dev, std::optional<bool>) {
  c10::OptionalDeviceGuard g(
      dev ? std::optional<c10::Device>(dev->has_index() ? *dev : c10::Device(c10::kCUDA, device_now)) : std::nullopt);
  return at::detail::empty_strided_generic(size, stride, &device_memory, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           c10::dtype_or_default(dt));
}
Tensor& copy_(Tensor& dst, const Tensor& src, bool non_blocking) {
  if (dst.is_same(src) || !dst.numel()) return dst;
  Lock lock(mutex_);
  usable();
  if (!dst.is_cuda() && !src.is_cuda()) {
    Below b;
    return dst.copy_(src);
  }
  int d = src.is_cuda() ? dev_of(src) : dev_of(dst);
  Key key{d, stream_now[d]};
  bool to_host = !dst.is_cuda(), from_host = !src.is_cuda();
  const Tensor& outside = to_host ? dst : src;
  bool across = to_host || from_host, asynchronous = !across || (non_blocking && is_pinned(outside.data_ptr()));
  Tensor a, b;
  {
    Below below;
    a = dst.is_cuda() ? host_view(dst) : dst.detach();
    b = src.is_cuda() ? host_view(src) : src.detach();
  }
  if (across && asynchronous && src.scalar_type() == dst.scalar_type() && !dst.is_cuda() && poison &&
      dst.is_contiguous())
    memset(dst.data_ptr(), 0xFF, dst.nbytes());
  if (to_host) counts["d2h_bytes"] += src.nbytes();
  counts[!across        ? "d2d"
         : asynchronous ? (to_host ? "d2h_async" : "h2d_async")
                        : (to_host ? "d2h_sync" : "h2d_sync")]++;
  if (to_host && !asynchronous && non_blocking) counts["d2h_nonblocking_but_pageable"]++;
  if (!across && dev_of(dst) != d) {
    drain({dev_of(dst), stream_now[dev_of(dst)]});
  }
  if (across && !non_blocking) synchronises(to_host ? "copy to host" : "copy from host");
  enqueue(key, {[a, b]() mutable {
            Below below;
            at::AutoDispatchBelowADInplaceOrView g;
            a.copy_(b);
          }});
  if (!asynchronous || (!across && dev_of(dst) != d)) drain(key);
  return dst;
}
Tensor as_strided(const Tensor& t, c10::IntArrayRef s, c10::IntArrayRef st, std::optional<int64_t> o) {
  return at::native::as_strided_tensorimpl(t, s, st, o);
}
Tensor view(const Tensor& t, c10::IntArrayRef s) { return at::native::view(t, s); }
Tensor reshape_alias(const Tensor& t, c10::IntArrayRef s, c10::IntArrayRef st) {
  return at::native::_reshape_alias(t, s, st);
}
Tensor unfold(const Tensor& t, int64_t a, int64_t b, int64_t c) { return at::native::unfold(t, a, b, c); }
const Tensor& resize_(const Tensor& t, c10::IntArrayRef size, std::optional<c10::MemoryFormat> mf) {
  auto* impl = t.unsafeGetTensorImpl();
  int64_t numel = c10::multiply_integers(size);
  auto bytes = (numel + t.storage_offset()) * (int64_t)t.itemsize();
  if (numel && bytes > (int64_t)t.storage().nbytes()) {
    Lock lock(mutex_);
    c10::DeviceGuard g(t.device());
    auto fresh = device_memory.allocate(bytes);
    drain(here());
    if (t.storage().nbytes()) memcpy(fresh.get(), t.storage().data(), t.storage().nbytes());
    t.storage().set_data_ptr_noswap(std::move(fresh));
    t.storage().set_nbytes(bytes);
  }
  impl->set_sizes_contiguous(size);
  if (mf) impl->empty_tensor_restride(*mf);
  return t;
}
Tensor& set_offset(Tensor& t, c10::Storage s, int64_t o, c10::IntArrayRef size, c10::IntArrayRef stride) {
  auto* impl = t.unsafeGetTensorImpl();
  if (!impl->has_storage() || !impl->storage().is_alias_of(s)) impl->set_storage_keep_dtype(std::move(s));
  impl->set_storage_offset(o);
  if (stride.data())
    impl->set_sizes_and_strides(size, stride);
  else
    impl->set_sizes_contiguous(size);
  return t;
}
Tensor& set_storage(Tensor& t, c10::Storage s) {
  int64_t n = s.nbytes() / t.itemsize();
  return set_offset(t, std::move(s), 0, {n}, {});
}
Tensor& set_tensor(Tensor& t, const Tensor& s) {
  return set_offset(t, s.storage(), s.storage_offset(), s.sizes(), s.strides());
}
Tensor& set_none(Tensor& t) {
  return set_offset(t, c10::Storage(c10::Storage::use_byte_size_t(), 0, &device_memory, true), 0, {0}, {});
}
void record_stream(Tensor& t, c10::Stream s) { device_memory.recordStream(t.storage().data_ptr(), s); }

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy_);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &unfold);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_offset);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_none);
  m.impl("record_stream", &record_stream);
}
static c10::AllocatorRegisterer<c10::DeviceType::CUDA> allocator_registrar(&device_memory);
}  // namespace sim

#include "nccl.hpp"

namespace at {
struct CUDAHooks final : CUDAHooksInterface {
  CUDAHooks() = default;
  CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  const Generator& getDefaultGenerator(DeviceIndex i = -1) const override {
    return sim::gens()[i < 0 ? sim::device_now : i];
  }
  Generator getNewGenerator(DeviceIndex i = -1) const override {
    return make_generator<sim::Gen>(i < 0 ? sim::device_now : i);
  }
  Device getDeviceFromPtr(void*) const override { return {kCUDA, 0}; }
  bool isPinnedPtr(const void* p) const override { return sim::is_pinned(p); }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return sim::device_now; }
  DeviceIndex deviceCount() const override { return sim::devices; }
  DeviceIndex getCurrentDevice() const override { return sim::device_now; }
  void setCurrentDevice(DeviceIndex d) const override { sim::device_now = d; }
  DeviceIndex exchangeDevice(DeviceIndex d) const override {
    auto o = sim::device_now;
    if (d >= 0) sim::device_now = d;
    return o;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex d) const override { return exchangeDevice(d); }
  Allocator* getPinnedMemoryAllocator() const override { return &sim::host_memory; }
  Allocator* getCUDADeviceAllocator() const override { return &sim::device_memory; }
  int getNumGPUs() const override { return sim::devices; }
  void deviceSynchronize(DeviceIndex d) const override {
    sim::Lock lock(sim::mutex_);
    sim::usable();
    sim::waits("device");
    sim::drain_device(d);
  }
};
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

static void take_over_hooks() {
  // `import torch` has asked for the hooks before this library could register its own, and torch keeps what it got: an
  // object without members. Its table of functions becomes ours.
  static_assert(sizeof(at::CUDAHooks) == sizeof(void*));
  static at::CUDAHooks ours;
  *reinterpret_cast<void**>(const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) =
      *reinterpret_cast<void**>(&ours);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  take_over_hooks();
  sim::define_nccl(m);
  m.def("policy", [](bool lazy_main, bool lazy_side, bool chaotic, int seed, int lag_ms, bool poison) {
    sim::Lock lock(sim::mutex_);
    sim::lazy_main = lazy_main;
    sim::lazy_side = lazy_side;
    sim::chaotic = chaotic;
    sim::dice.seed(seed);
    sim::lag_ms = lag_ms;
    sim::poison = poison;
  });
  m.def("counts", [] {
    sim::Lock lock(sim::mutex_);
    return sim::counts;
  });
  m.def("reset", [] {
    sim::Lock lock(sim::mutex_);
    sim::counts.clear();
    sim::syncs.clear();
    sim::waits_of_main.clear();
  });
  m.def("pin_limit", [](int64_t n) { sim::pin_limit = n; });
  m.def("pinned_bytes", [] { return sim::pin_bytes; });
  m.def("memory", [](int d) {
    sim::Lock lock(sim::mutex_);
    auto& m = sim::memory[d];
    return std::make_tuple(m.in_use, m.peak, m.reserved, m.peak_reserved, m.limit);
  });
  m.def("reset_peak", [](int d) { sim::device_memory.resetPeakStats(d); });
  m.def("memory_limit", [](int d, int64_t n) {
    sim::Lock lock(sim::mutex_);
    sim::memory[d].limit = n;
  });
  m.def(
      "empty_cache",
      [] {
        sim::Lock lock(sim::mutex_);
        sim::usable();
        for (int d = 0; d < sim::devices; d++) sim::empty_cache(d);
      },
      pybind11::call_guard<pybind11::gil_scoped_release>());
  m.def("lose", [] { sim::lost = true; });
  m.def("adopt", [] { sim::owner = getpid(); });  // a fork of a process that never used the device
  m.def("waits", [] {
    sim::Lock lock(sim::mutex_);
    return sim::waits_of_main;
  });
  m.def("set_devices", [](int n) { sim::devices = n; });
  m.def("current_device", [] { return sim::device_now; });
  m.def("set_device", [](int d) { sim::device_now = d; });
  m.def("rng_get", [](int i) {
    sim::Lock lock(sim::mutex_);
    return sim::gens()[i].get_state();
  });
  m.def("rng_set", [](int i, const at::Tensor& t) {
    sim::Lock lock(sim::mutex_);
    sim::gens()[i].set_state(t);
  });
  m.def("rng_seed", [](int i, uint64_t s) {
    sim::Lock lock(sim::mutex_);
    sim::gens()[i].set_current_seed(s);
  });
  m.def("rng_initial", [](int i) { return sim::gens()[i].current_seed(); });
  m.def("sync_debug", [](int n) { sim::sync_debug = n; });
  m.def("syncs", [] {
    sim::Lock lock(sim::mutex_);
    return sim::syncs;
  });
  m.def("pending", [] {
    sim::Lock lock(sim::mutex_);
    int64_t n = 0;
    for (auto& [k, q] : sim::queues) n += q.tasks.size();
    return n;
  });
}
