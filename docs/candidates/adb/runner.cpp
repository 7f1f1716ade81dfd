// MODEL LIST: run a piece by onnxruntime's C++ interface, on the phone. Each line of LIST is
// `in FILE TYPE RANK SIZES… NAME` or `out FILE NAME`; values are headerless; outputs go into outputs/FILE.
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "onnxruntime_cxx_api.h"

static std::string rest(std::istringstream &line) {
  std::string name;
  std::getline(line >> std::ws, name);
  return name;
}

// Bytes of an element, by ONNX's number of its type.
static size_t width(int type) {
  static const size_t widths[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 8, 16, 2};
  return widths[type];
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "subcut");
  Ort::SessionOptions options;  // AppendExecutionProvider("XNNPACK", {}) or _Nnapi(…) for another provider
  Ort::Session session{nullptr};
  try {
    session = Ort::Session(env, argv[1], options);
  } catch (const Ort::Exception &e) {
    std::cerr << e.what() << "\n";
    return 125;  // this model cannot be tested here
  }
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  std::vector<std::string> fed, asked, files;
  std::vector<std::vector<char>> bytes;
  std::vector<Ort::Value> values;
  std::ifstream list(argv[2]);
  for (std::string text; std::getline(list, text);) {
    std::istringstream line(text);
    std::string kind, file;
    line >> kind >> file;
    if (kind == "out") {
      files.push_back(file);
      asked.push_back(rest(line));
      continue;
    }
    int type = 0;
    size_t rank = 0;
    line >> type >> rank;
    std::vector<int64_t> shape(rank);
    for (auto &size : shape) line >> size;
    fed.push_back(rest(line));
    std::ifstream in(file, std::ios::binary);
    bytes.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    values.push_back(Ort::Value::CreateTensor(memory, bytes.back().data(), bytes.back().size(), shape.data(), rank,
                                              static_cast<ONNXTensorElementDataType>(type)));
  }
  std::vector<const char *> names, wanted;
  for (const auto &name : fed) names.push_back(name.c_str());
  for (const auto &name : asked) wanted.push_back(name.c_str());
  const auto results = session.Run({}, names.data(), values.data(), values.size(), wanted.data(), wanted.size());
  for (size_t k = 0; k < results.size(); ++k) {
    std::ofstream out("outputs/" + files[k], std::ios::binary);
    const auto of = results[k].GetTensorTypeAndShapeInfo();
    const char *data = results[k].GetTensorData<char>();
    out.write(data, of.GetElementCount() * width(of.GetElementType()));
  }
}
