// What stands in NCCL's place where several processes train, each on a simulated device of its own: sums, broadcasts and
// gathers of device memory, which gloo carries from process to process.
//
// As NCCL does, each is queued on a stream of its own, which waits for what its caller's stream had queued by then; the
// caller's stream, and not the host, waits for it. So a result that is read without a wait, and an argument that changes
// or is freed before, are seen. A thread drives that stream when nothing else has forced it for a moment, for a device
// goes on while its host waits for another process.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <condition_variable>
#include <iostream>

namespace sim {
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<Tensor>;
bool aborts = false;  // when another process is lost: as NCCL's watchdog ends this one; else it waits for ever

c10::Stream as_stream(Key key) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, key.first), key.second);
}

struct Collective final : c10d::Work {
  Key key;
  uint64_t position;
  Tensors tensors;
  Collective(int rank, c10d::OpType kind, Key key, Tensors tensors)
      : Work(rank, kind), key(key), position(queues[key].enqueued), tensors(std::move(tensors)) {}
  bool isCompleted() override {
    Lock lock(sim::mutex_);
    return queues[key].done >= position;
  }
  bool isSuccess() const override { return true; }
  Tensors result() override { return tensors; }
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds = kNoTimeout) override {
    Lock lock(sim::mutex_);
    usable();
    counts["stream_waits"]++;
    enqueue(here(key.first), {{}, true, key, position});
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto kind = c10::ListType::create(c10::TensorType::get());
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        std::move(kind), std::vector<c10::Device>{c10::Device(c10::kCUDA, key.first)});
    c10::StreamGuard guard(as_stream(key));
    future->markCompleted(c10::IValue(tensors));
    return future;
  }
};

class Nccl final : public c10d::Backend {
 public:
  Nccl(c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size) : Backend(rank, size), gloo_(std::move(gloo)) {
    driver_ = std::thread([this] { drive(); });
  }
  ~Nccl() override { shutdown(); }
  void shutdown() override {
    {
      std::lock_guard<std::mutex> lock(waiting_);
      ended_ = true;
    }
    asked_.notify_one();
    if (driver_.joinable()) driver_.join();
  }
  const std::string getBackendName() const override { return "nccl"; }
  void setSequenceNumberForGroup() override {}

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return queue(c10d::OpType::ALLREDUCE, tensors, {}, [this, options](Tensors& own, Tensors&) {
      return gloo_->allreduce(own, options);
    });
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return queue(c10d::OpType::BROADCAST, tensors, {}, [this, options](Tensors& own, Tensors&) {
      return gloo_->broadcast(own, options);
    });
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return queue(c10d::OpType::ALLGATHER, outputs.at(0), inputs, [this, options](Tensors& all, Tensors& own) {
      std::vector<Tensors> nested{all};
      return gloo_->allgather(nested, own, options);
    });
  }
  WorkPtr _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) override {
    return queue(c10d::OpType::_ALLGATHER_BASE, {output}, {input}, [this, options](Tensors& all, Tensors& own) {
      std::vector<Tensors> nested{all[0].reshape(-1).chunk(getSize())};
      Tensors flat{own[0].reshape(-1)};
      return gloo_->allgather(nested, flat, options);
    });
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {  // the host waits, as NCCL's does
    Tensor one = at::zeros({1}, at::device(c10::Device(c10::kCUDA, device_now)));
    auto work = allreduce_one(one);
    Lock lock(mutex_);
    waits("barrier");
    run_until(stream(device_now), queues[stream(device_now)].enqueued);
    return work;
  }

 private:
  using Body = std::function<WorkPtr(Tensors&, Tensors&)>;
  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::map<int, int64_t> streams_;
  std::map<Key, uint64_t> to_drive_;
  std::mutex waiting_;
  std::condition_variable asked_;
  bool ended_ = false;
  std::thread driver_;

  WorkPtr allreduce_one(Tensor& one) {
    Tensors tensors{one};
    return allreduce(tensors, {});
  }
  Key stream(int d) {
    auto [found, fresh] = streams_.try_emplace(d, 0);
    if (fresh) found->second = next_stream++;
    return {d, found->second};
  }
  static Tensors views(const Tensors& tensors) {
    Below below;
    Tensors all;
    for (const Tensor& t : tensors) all.push_back(host_view(t));
    return all;
  }
  WorkPtr queue(c10d::OpType kind, const Tensors& results, const Tensors& given, const Body& body) {
    Lock lock(mutex_);
    usable();
    int d = dev_of(results.at(0));
    Key caller = here(d), own = stream(d);
    for (const Tensors* all : {&results, &given})
      for (const Tensor& t : *all) device_memory.recordStream(t.storage().data_ptr(), as_stream(own));
    counts["collectives"]++;
    enqueue(own, {{}, true, caller, queues[caller].enqueued});
    Task task{[this, body, a = views(results), b = views(given)]() mutable {
      Below below;
      try {
        body(a, b)->wait();
      } catch (const std::exception& error) {
        fail(error.what());
      }
    }};
    task.apart = true;
    enqueue(own, std::move(task));
    {
      std::lock_guard<std::mutex> waiting(waiting_);
      to_drive_[own] = queues[own].enqueued;
    }
    asked_.notify_one();
    return c10::make_intrusive<Collective>(getRank(), kind, own, results);
  }
  [[noreturn]] void fail(const char* why) {
    std::cerr << "NCCL (simulated): rank " << getRank() << (aborts ? " is ended: " : " waits for ever: ") << why
              << std::endl;
    if (aborts) std::abort();
    while (true) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  void drive() {
    std::unique_lock<std::mutex> waiting(waiting_);
    while (true) {
      asked_.wait(waiting, [this] { return ended_ || !to_drive_.empty(); });
      if (to_drive_.empty()) return;
      auto positions = std::exchange(to_drive_, {});
      waiting.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(lag_ms));
      {
        Lock lock(mutex_);
        for (auto& [key, position] : positions) run_until(key, position);
      }
      waiting.lock();
    }
  }
};

void define_nccl(pybind11::module_& m) {
  pybind11::module_::import("torch._C._distributed_c10d");
  pybind11::class_<Nccl, c10d::Backend, c10::intrusive_ptr<Nccl>>(m, "ProcessGroupNCCL")
      .def(pybind11::init([](pybind11::object store, int rank, int size, pybind11::object options) {
        auto gloo = pybind11::module_::import("torch.distributed").attr("ProcessGroupGloo");
        auto made = gloo(store, rank, size, pybind11::arg("timeout") = options.attr("_timeout"));
        return c10::make_intrusive<Nccl>(made.cast<c10::intrusive_ptr<c10d::Backend>>(), rank, size);
      }));
  m.def("lost_process_aborts", [](bool yes) { aborts = yes; });
}
}  // namespace sim

namespace c10d {
// DistributedDataParallel times its steps by events of the device; here by the host's clock.
struct SimulatedTimer final : Timer {
  explicit SimulatedTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    auto from = getTimeRef(start), to = getTimeRef(end);
    if (from < 0 || to < from) return std::nullopt;
    return to - from;
  }
};
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, SimulatedTimer);
}  // namespace c10d
